package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"time"
)

// helperCommand is the first argument with which this program, static as it is,
// measures from within: in a sandbox, or on the host to compare.
const helperCommand = "helper"

// runHelper prints, as JSON, what was measured.
//
//	chase             nanoseconds of a load that depends on the one before
//	sum               nanoseconds of a load in sequence
//	spawn PROGRAM N   milliseconds of each of N starts of a program
func runHelper(args []string, out io.Writer) error {
	if len(args) == 0 {
		return errors.New("helper: what is missing")
	}
	var result any
	switch args[0] {
	case "chase":
		result = chase()
	case "sum":
		result = sum()
	case "spawn":
		if len(args) != 3 {
			return errors.New("helper: spawn PROGRAM N")
		}
		n, err := strconv.Atoi(args[2])
		if err != nil {
			return err
		}
		if result, err = spawn(args[1], n); err != nil {
			return err
		}
	default:
		return fmt.Errorf("helper: %q is unknown", args[0])
	}
	return json.NewEncoder(out).Encode(result)
}

const (
	loopBytes  = 64 << 20
	cacheLine  = 64 // bytes; a node each
	nodeWords  = cacheLine / 8
	chaseLoads = 4 << 20
	sumPasses  = 4
)

// chase follows a random cycle through all cache lines of loopBytes. The cycle
// is the same every time.
func chase() float64 {
	nodes := loopBytes / cacheLine
	words := make([]uint64, nodes*nodeWords)
	order := rand.New(rand.NewPCG(1, 2)).Perm(nodes)
	for i, n := range order {
		words[n*nodeWords] = uint64(order[(i+1)%nodes] * nodeWords)
	}
	at := uint64(0)
	start := time.Now()
	for range chaseLoads {
		at = words[at]
	}
	took := time.Since(start)
	runtime.KeepAlive(at) // else the loop could be left out
	return float64(took.Nanoseconds()) / chaseLoads
}

// sum adds up loopBytes, word by word.
func sum() float64 {
	words := make([]uint64, loopBytes/8)
	for i := range words {
		words[i] = uint64(i)
	}
	total := uint64(0)
	start := time.Now()
	for range sumPasses {
		for _, w := range words {
			total += w
		}
	}
	took := time.Since(start)
	runtime.KeepAlive(total) // else the loop could be left out
	return float64(took.Nanoseconds()) / float64(sumPasses*len(words))
}

// spawn starts a program with the fewest ties (no pipes, /dev/null for all
// streams) and waits for it, as Go's runtime does it: a clone with CLONE_VFORK,
// an execve, a wait. The first starts fill caches and do not count.
func spawn(program string, n int) ([]float64, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	const unheeded = 3
	var samples []float64
	for i := range n + unheeded {
		start := time.Now()
		p, err := os.StartProcess(program, []string{program}, &os.ProcAttr{Files: []*os.File{null, null, null}})
		if err != nil {
			return nil, err
		}
		state, err := p.Wait()
		if err != nil {
			return nil, err
		}
		if !state.Success() {
			return nil, fmt.Errorf("%s: %s", program, state)
		}
		if i >= unheeded {
			samples = append(samples, ms(time.Since(start)))
		}
	}
	return samples, nil
}
