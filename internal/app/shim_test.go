package app

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// The program is executed by a path that no file's fate has a say in, and what
// is executed cannot be changed by anybody.
func TestProgramInMemory(t *testing.T) {
	elf, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	f, err := newProgram("true", elf)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	path := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd())
	for range 2 {
		if err := exec.Command(path).Run(); err != nil {
			t.Errorf("execute: %v", err)
		}
	}
	if _, err := f.WriteAt([]byte("x"), 0); err == nil {
		t.Error("the program could be written to")
	}
	if err := f.Truncate(0); err == nil {
		t.Error("the program could be truncated")
	}
}
