package app

import (
	"context"
	"io"
	"net"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/control"
	"skerry.dev/skerry/internal/runner"
)

// toolboxDialer finds the guest of a sandbox: on this host, or else asks the
// control plane why it is not there. The usual way touches no database.
type toolboxDialer struct {
	runner  *runner.Runner
	control *control.Control
}

// DialToolbox implements gateway.Dialer.
func (d toolboxDialer) DialToolbox(ctx context.Context, id skerry.SandboxID) (net.Conn, error) {
	conn, err := d.runner.DialToolbox(ctx, id)
	if err == nil {
		return conn, nil
	}
	sb, lookup := d.control.Sandbox(ctx, string(id))
	if lookup != nil {
		return nil, lookup
	}
	switch sb.Status {
	case skerry.StatusRunning:
		return nil, err
	case skerry.StatusDeleted:
		return nil, skerry.Errorf(skerry.CodeGone, "sandbox %s is deleted", id)
	}
	return nil, skerry.Errorf(skerry.CodeConflict, "sandbox %s is %s, not running", id, sb.Status)
}

// Ready implements gateway.Dialer.
func (d toolboxDialer) Ready(id skerry.SandboxID) error { return d.runner.Ready(id) }

// console opens the console log of a sandbox.
func (s *Server) console(ctx context.Context, id skerry.SandboxID) (io.ReadCloser, error) {
	sb, err := s.control.Sandbox(ctx, string(id))
	if err != nil {
		return nil, err
	}
	return s.runner.ConsoleLog(sb.ID, sb.Machine)
}
