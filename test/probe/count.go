package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// A counter keeps a number in memory, and its last values in a file of
// countBlocks blocks of countBlock bytes: number n fills block n % countBlocks.
const (
	countBlocks = 2048
	countBlock  = 4096
	countSync   = 128 // blocks between two fsync(2)
)

// Where a counter keeps its file on the disk, and that in memory which tells how
// far it is.
const (
	countDisk   = "/var/count"
	countMemory = "/dev/shm/count"
)

// count counts for ever: count [DELAY].
func count(args []string) error {
	var delay time.Duration
	if len(args) > 0 {
		var err error
		if delay, err = time.ParseDuration(args[0]); err != nil {
			return err
		}
	}
	var files [2]*os.File
	for i, name := range []string{countDisk, countMemory} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		f, err := os.Create(name)
		if err != nil {
			return err
		}
		defer f.Close()
		files[i] = f
	}
	block := make([]byte, countBlock)
	for n := uint64(1); ; n++ {
		fillBlock(block, n)
		if _, err := files[0].WriteAt(block, int64(n%countBlocks)*countBlock); err != nil {
			return err
		}
		if n%countSync == 0 {
			if err := files[0].Sync(); err != nil {
				return err
			}
		}
		if _, err := files[1].WriteAt(block[:8], 0); err != nil {
			return err
		}
		time.Sleep(delay)
	}
}

func fillBlock(block []byte, n uint64) {
	for i := 0; i < len(block); i += 8 {
		binary.LittleEndian.PutUint64(block[i:], n)
	}
}

// counted stops the counter with the process id PID, reads its file from the
// disk, prints the number and has it go on: counted PID. It fails unless the
// file is what a counter with that number has written.
func counted(args []string) error {
	var pid int
	if _, err := fmt.Sscan(args[0], &pid); err != nil {
		return err
	}
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		return err
	}
	err := checkCount()
	return errors.Join(err, unix.Kill(pid, unix.SIGCONT))
}

func checkCount() error {
	// What is in memory would hide what the disk has.
	unix.Sync()
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0o600); err != nil {
		return err
	}
	memory, err := os.ReadFile(countMemory)
	if err != nil {
		return err
	}
	disk, err := os.ReadFile(countDisk)
	if err != nil {
		return err
	}
	if len(memory) < 8 {
		return fmt.Errorf("%s has %d bytes", countMemory, len(memory))
	}
	n := binary.LittleEndian.Uint64(memory)
	for slot := range uint64(len(disk) / countBlock) {
		block := disk[slot*countBlock:][:countBlock]
		got, want := binary.LittleEndian.Uint64(block), uint64(0)
		if n >= slot {
			want = n - (n-slot)%countBlocks
		}
		next := got == n+1 && got%countBlocks == slot // is on the disk already
		if got != want && !next {
			return fmt.Errorf("block %d has %d, want %d of a counter at %d", slot, got, want, n)
		}
		for at := 0; at < countBlock; at += 8 {
			if v := binary.LittleEndian.Uint64(block[at:]); v != got {
				return fmt.Errorf("block %d has %d and %d", slot, got, v)
			}
		}
	}
	if uint64(len(disk)) < min(n+1, countBlocks)*countBlock {
		return fmt.Errorf("%s has %d bytes after %d numbers", countDisk, len(disk), n)
	}
	fmt.Println(n)
	return nil
}

// setXattr sets an extended attribute: xattr FILE NAME VALUE.
func setXattr(args []string) error {
	return unix.Lsetxattr(args[0], args[1], []byte(args[2]), 0)
}
