package runner

import (
	"context"
	"net"
	"os"
	"path/filepath"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/shim"
)

// DialToolbox opens a connection to the toolbox of a running sandbox. Errors:
// CodeNotFound when this host does not have it, CodeConflict when it does not
// run (yet, or any more), CodeExhausted when it stands still because the disk is
// full.
func (r *Runner) DialToolbox(ctx context.Context, id skerry.SandboxID) (net.Conn, error) {
	s, err := r.running(id)
	if err != nil {
		return nil, err
	}
	if err := r.Ready(id); err != nil {
		return nil, err
	}
	return s.proc.Client.DialToolbox(ctx)
}

// Ready returns CodeExhausted for a running sandbox that stands still because the
// disk is full: it answers on no connection.
func (r *Runner) Ready(id skerry.SandboxID) error {
	if s := r.current(id); s != nil && r.isFull(s) {
		return skerry.Errorf(skerry.CodeExhausted, "sandbox %s: %s", id, bus.ReasonFull)
	}
	return nil
}

// ConsoleLog opens the guest's console log. The caller closes it.
func (r *Runner) ConsoleLog(id skerry.SandboxID, machineID skerry.MachineID) (*os.File, error) {
	if !machineID.Valid() {
		return nil, skerry.Errorf(skerry.CodeNotFound, "sandbox %s has no machine yet", id)
	}
	f, err := os.Open(filepath.Join(r.machineDir(machineID), shim.ConsoleFile))
	if os.IsNotExist(err) {
		return nil, skerry.Errorf(skerry.CodeNotFound, "sandbox %s has no console log", id)
	}
	return f, err
}

func (r *Runner) running(id skerry.SandboxID) (*sandbox, error) {
	r.mu.Lock()
	s := r.sandboxes[id]
	r.mu.Unlock()
	if s == nil {
		return nil, skerry.Errorf(skerry.CodeNotFound, "sandbox %s is not on this host", id)
	}
	select {
	case <-s.settled:
	default:
		return nil, skerry.Errorf(skerry.CodeConflict, "sandbox %s is not running yet", id)
	}
	r.mu.Lock()
	failed, kept := s.failed, s.kept
	r.mu.Unlock()
	if kept != "" {
		return nil, skerry.Errorf(skerry.CodeConflict, "sandbox %s is %s", id, kept)
	}
	if failed != "" || s.err != nil {
		return nil, skerry.Errorf(skerry.CodeConflict, "sandbox %s has failed", id)
	}
	return s, nil
}
