package control

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/guestapi"
)

// A rehearsal is an activation that does not count. The host goes through one,
// and through a command, before it captures a machine and before it puts one
// into its ready pool. What the first time leaves behind for the second is then
// there: files in the page cache, threads, grown heaps, and under emulation
// translated code. All that an activation sets is set anew by the real one.
type stage struct {
	toolbox Toolbox
	http    *streamServer
}

// RehearsalArg is the argument with which the agent's program does nothing.
const RehearsalArg = "rehearsal"

// rehearse opens a stage and says what to run on it: a program of the image that
// does nothing, so that its loader and C library are in memory too, or else the
// agent itself.
func (a *Agent) rehearse(ctx context.Context, in guestapi.Activation) (any, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.state != prepared || a.stage != nil {
		return nil, skerry.Errorf(skerry.CodeConflict, "machine is %s", a.state)
	}
	if _, err := a.system.Activate(ctx, in); err != nil {
		return nil, fmt.Errorf("rehearse: %w", err)
	}
	// A sandbox does this a second later, beside what its user does.
	if err := a.system.SetMAC(in.MAC); err != nil {
		return nil, fmt.Errorf("rehearse: %w", err)
	}
	toolbox := a.toolbox.Stage()
	if _, _, err := toolbox.Activate(in); err != nil {
		return nil, fmt.Errorf("rehearse: %w", err)
	}
	a.stage = &stage{toolbox: toolbox, http: newStreamServer(toolbox)}
	argv := []string{"/proc/1/exe", RehearsalArg}
	if info, err := os.Stat("/bin/true"); err == nil && info.Mode().IsRegular() {
		argv = []string{"/bin/true"}
	}
	return guestapi.Rehearsal{Argv: argv, Usual: usualPrograms()}, nil
}

// usualPrograms are what the first commands in a sandbox often are, as far as the
// image has them. Only binaries: a script of the same name could do anything.
func usualPrograms() (usual [][]string) {
	for _, argv := range [][]string{
		{"echo", "rehearsal"},
		{"sh", "-c", ":"},
		{"cat", "/etc/hostname"},
		{"ls", "/"},
		{"python3", "-B", "-c", "import os, sys, json, subprocess"},
		{"node", "-v"},
	} {
		for _, dir := range []string{"/usr/local/bin", "/usr/bin", "/bin"} {
			if path := filepath.Join(dir, argv[0]); isBinary(path) {
				usual = append(usual, append([]string{path}, argv[1:]...))
				break
			}
		}
	}
	return usual
}

func isBinary(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	magic := make([]byte, 4)
	_, err = io.ReadFull(f, magic)
	return err == nil && string(magic) == "\x7fELF"
}

func (a *Agent) serveRehearsal(stream net.Conn) {
	a.mu.Lock()
	stage := a.stage
	a.mu.Unlock()
	if stage == nil {
		stream.Close()
		return
	}
	stage.http.serve(stream)
}

// quiesce takes the stage down and brings the system to rest.
func (a *Agent) quiesce(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.stage; s != nil {
		a.stage = nil
		if err := s.toolbox.Close(ctx, 0); err != nil {
			return fmt.Errorf("end rehearsal: %w", err)
		}
		if err := s.http.close(); err != nil {
			return fmt.Errorf("end rehearsal: %w", err)
		}
	}
	a.system.Quiesce()
	return nil
}
