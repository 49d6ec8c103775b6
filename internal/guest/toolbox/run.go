package toolbox

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/guest/toolbox/process"
	"skerry.dev/skerry/internal/guestapi"
)

// FramesType is the content type of the answer of POST /processes/run.
const FramesType = "application/vnd.skerry.frames"

// startRun starts the process of a run request.
func (b *sandbox) startRun(req *skerry.RunRequest) (*process.Process, *process.Follower, error) {
	switch req.OnDisconnect {
	case "":
		req.OnDisconnect = skerry.DisconnectKill
	case skerry.DisconnectKill, skerry.DisconnectContinue:
	default:
		return nil, nil, toolboxError(http.StatusBadRequest, skerry.ToolboxInvalidBody,
			"onDisconnect %.32q: is neither kill nor continue", req.OnDisconnect)
	}
	o := process.Options{Follow: true}
	if req.KeepLogs == "" && req.OnDisconnect == skerry.DisconnectKill {
		req.KeepLogs, o.UntilSeen = process.KeepNone, true // the client has it all
	}
	return b.table.Start(&req.ProcessRequest, o)
}

// disconnected does what the request wants when its client has gone. When the
// whole link is lost no client has gone: the machine was paused or saved, or its
// host restarts. Then the process goes on, and its client may come back to it.
func disconnected(ctx context.Context, p *process.Process, req *skerry.RunRequest) {
	switch {
	case guestapi.LinkLost(ctx):
		p.Keep()
	case req.OnDisconnect == skerry.DisconnectKill:
		p.Terminate()
	}
}

// runStream is POST /processes/run. For a process without standard input it
// takes one round trip; a WebSocket needs two, one for its upgrade.
func (s *Server) runStream(box *sandbox, w http.ResponseWriter, r *http.Request) error {
	var req skerry.RunRequest
	if err := readJSON(w, r, maxBody, &req); err != nil {
		return err
	}
	if req.Stdin == process.StdinPipe || req.Kind == process.KindPTY {
		return toolboxError(http.StatusBadRequest, skerry.ToolboxInvalidBody,
			"a run with standard input needs the WebSocket, GET /processes/run")
	}
	p, follower, err := box.startRun(&req)
	if err != nil {
		return err
	}
	defer follower.Close()
	w.Header().Set("Content-Type", FramesType)
	f := &frameStream{w: w, control: http.NewResponseController(w)}
	if err := f.copy(r.Context(), p, follower); err != nil {
		disconnected(r.Context(), p, &req)
		return errors.Join(errAborted, err)
	}
	return nil
}

// runInfo is a process as run events tell it: without what its client sent, which
// may be larger than a frame.
func runInfo(p *process.Process) *skerry.Process {
	info := p.Info()
	info.Argv, info.ShellCommand, info.Env = nil, "", nil
	return &info
}

// frameStream writes the frames of POST /processes/run.
type frameStream struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

// copy sends all output of a process and how it ended.
func (f *frameStream) copy(ctx context.Context, p *process.Process, follower *process.Follower) error {
	if err := f.event(skerry.RunStarted, p); err != nil {
		return err
	}
	for {
		if !follower.More() {
			if err := f.control.Flush(); err != nil {
				return err
			}
		}
		frame, err := follower.Next(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if _, err := f.w.Write(frame.Wire()); err != nil {
			return err
		}
	}
	<-p.Done()
	return f.event(skerry.RunExit, p)
}

func (f *frameStream) event(kind string, p *process.Process) error {
	payload, err := json.Marshal(skerry.RunEvent{Type: kind, Process: runInfo(p)})
	if err != nil {
		return err
	}
	_, err = f.w.Write(skerry.AppendRunFrame(nil, skerry.RunEvents, payload))
	return err
}
