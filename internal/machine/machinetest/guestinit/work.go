package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// worker writes to disk and memory at once, so that a copy of the machine shows
// whether both are of one instant. Round n writes n to one sector of vdb and
// to touched pages of memory, and ends with n in rounds. It stops when the
// first sector of vdb says so: the host can write that into a copy.
type worker struct {
	rounds atomic.Uint64
	memory []byte
	done   chan struct{}
	err    error // valid after done
}

// The layout of the work on the disk, which the host knows too, and in memory.
const (
	firstWorkSector = 64
	workSectors     = 2048
	touchedPages    = 32
)

// work MIB: start to write to so much memory.
func (g *guest) work(a []string) (string, error) {
	mib, err := strconv.Atoi(a[0])
	if err != nil {
		return "", err
	}
	w := &worker{done: make(chan struct{})}
	w.memory, err = unix.Mmap(-1, 0, mib<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return "", err
	}
	g.worker = w
	go func() {
		defer close(w.done)
		w.err = w.run()
	}()
	return "", nil
}

func (w *worker) run() error {
	fd, err := openDisk("vdb")
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	image, err := unix.Open("/dev/vda", unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(image)
	buf := page()[:512]
	for {
		if _, err := unix.Pread(image, buf, 0); err != nil || !strings.HasPrefix(string(buf), "first") {
			return fmt.Errorf("image: %q, %w", buf[:5], err)
		}
		if _, err := unix.Pread(fd, buf, 0); err != nil {
			return fmt.Errorf("gate: %w", err)
		}
		if strings.HasPrefix(string(buf), "stop") {
			return nil
		}
		n := w.rounds.Load() + 1
		binary.LittleEndian.PutUint64(buf, n)
		if _, err := unix.Pwrite(fd, buf, int64(firstWorkSector+n%workSectors)*512); err != nil {
			return fmt.Errorf("round %d: %w", n, err)
		}
		for p := range uint64(touchedPages) {
			binary.LittleEndian.PutUint64(w.page(n*touchedPages+p), n)
		}
		w.rounds.Store(n)
	}
}

func (w *worker) page(number uint64) []byte {
	return w.memory[number*4096%uint64(len(w.memory)):]
}

// rounds: how many there were so far.
func (g *guest) rounds([]string) (string, error) {
	if g.worker == nil {
		return "", errors.New("no work")
	}
	return strconv.FormatUint(g.worker.rounds.Load(), 10), nil
}

// stopped: wait for the end of the work, and how many rounds there were if the
// memory is as they left it.
func (g *guest) stopped([]string) (string, error) {
	w := g.worker
	<-w.done
	if w.err != nil {
		return "", w.err
	}
	n := w.rounds.Load()
	groups := uint64(len(w.memory)) / 4096 / touchedPages
	for m := n; m > 0 && m+groups > n; m-- {
		for p := range uint64(touchedPages) {
			if got := binary.LittleEndian.Uint64(w.page(m*touchedPages + p)); got != m {
				return "", fmt.Errorf("after round %d the pages of round %d hold %d", n, m, got)
			}
		}
	}
	return strconv.FormatUint(n, 10), nil
}
