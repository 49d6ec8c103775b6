package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func environ([]string) error {
	b, err := os.ReadFile("/proc/self/environ")
	if err == nil {
		_, err = os.Stdout.Write(b)
	}
	return err
}

// eat takes and touches memory, MIB [hold]; with hold it keeps it until its
// input ends.
func eat(args []string) error {
	mib, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	var blocks [][]byte
	for range mib {
		b, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err != nil {
			return fmt.Errorf("after %d MiB: %w", len(blocks), err)
		}
		for i := 0; i < len(b); i += 4096 {
			b[i] = byte(i>>12) | 1
		}
		blocks = append(blocks, b)
	}
	fmt.Println("ate", len(blocks))
	if len(args) > 1 {
		_, err = io.Copy(io.Discard, os.Stdin)
	}
	return err
}

// fill writes to a file until that fails, and prints how many MiB it wrote.
func fill(args []string) error {
	f, err := os.Create(args[0])
	if err != nil {
		return err
	}
	defer f.Close()
	block := make([]byte, 1<<20)
	for i := range block {
		block[i] = byte(i * 7) // not zeros, which might not be stored
	}
	for n := 0; ; n++ {
		if _, err := f.Write(block); err != nil {
			if err = errors.Unwrap(err); errors.Is(err, unix.ENOSPC) {
				fmt.Println(n, "ENOSPC")
				return nil
			}
			return fmt.Errorf("after %d MiB: %w", n, err)
		}
	}
}

// pastEnd writes behind the end of a block device, and says how that ended.
func pastEnd(args []string) error {
	f, err := os.OpenFile(args[0], os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(make([]byte, 4096), size+1<<20)
	fmt.Println(size, err)
	return nil
}

// zombies counts the processes in state Z.
func zombies([]string) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	n := 0
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		b, _ := os.ReadFile("/proc/" + e.Name() + "/stat")
		if i := strings.LastIndexByte(string(b), ')'); i > 0 && strings.HasPrefix(string(b[i:]), ") Z") {
			n++
		}
	}
	fmt.Println(n)
	return nil
}

// pattern writes N bytes that depend on their place, after an optional delay.
func pattern(args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	if len(args) > 1 {
		d, err := time.ParseDuration(args[1])
		if err != nil {
			return err
		}
		time.Sleep(d)
	}
	w := bufio.NewWriter(os.Stdout)
	for i := range n {
		w.WriteByte(byte(i % 251))
	}
	return w.Flush()
}
