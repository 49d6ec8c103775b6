package skerry

import (
	"fmt"
	"slices"
	"strings"
)

// Action is something a caller does with a sandbox.
type Action string

// The actions on a sandbox.
const (
	Toolbox         Action = "toolbox" // commands, files, everything inside
	Stop            Action = "stop"
	Start           Action = "start"
	Pause           Action = "pause"
	Resume          Action = "resume"
	Fork            Action = "fork"
	CaptureImage    Action = "capture"
	CreateSnapshot  Action = "snapshot"
	Touch           Action = "touch" // reset of the idle timer
	UpdateLifecycle Action = "policy"
	Reclaim         Action = "reclaim" // the operator takes a spot sandbox's capacity back
	Delete          Action = "delete"
)

// rule says when an action is valid.
type rule struct {
	from       []Status // nil: any status
	persistent bool     // only for persistent sandboxes
	exclusive  bool     // no other operation may be under way
}

// rules is the table "Which operations are valid" of Daytona's "Sandboxes"
// page, with what its "Linux Sandboxes" page adds. A fork, of whose states the
// page says nothing, works wherever there is a disk at hand.
var rules = map[Action]rule{
	Toolbox:         {from: []Status{StatusRunning}},
	Stop:            {from: []Status{StatusRunning}, persistent: true, exclusive: true},
	Start:           {from: []Status{StatusStopped, StatusPaused}, persistent: true, exclusive: true},
	Pause:           {from: []Status{StatusRunning}, persistent: true, exclusive: true},
	Resume:          {from: []Status{StatusPaused}, exclusive: true},
	Fork:            {from: []Status{StatusRunning, StatusStopped, StatusPaused}, persistent: true, exclusive: true},
	CaptureImage:    {from: []Status{StatusRunning, StatusStopped}, exclusive: true},
	CreateSnapshot:  {from: []Status{StatusRunning}, exclusive: true},
	Touch:           {from: allBut(StatusDeleting, StatusDeleted)},
	UpdateLifecycle: {from: allBut(StatusDeleting, StatusDeleted)},
	Reclaim:         {from: allBut(StatusDeleting, StatusDeleted)},
	Delete:          {},
}

func allBut(not ...Status) []Status {
	return slices.DeleteFunc(Statuses(), func(s Status) bool { return slices.Contains(not, s) })
}

// Actions lists all actions.
func Actions() []Action {
	return []Action{Toolbox, Stop, Start, Pause, Resume, Fork, CaptureImage, CreateSnapshot, Touch, UpdateLifecycle, Reclaim, Delete}
}

// Check returns nil if the action is valid for the sandbox now, else a
// CodeConflict error that says why not, or CodeGone for a deleted sandbox.
func (a Action) Check(s Sandbox) error {
	r, ok := rules[a]
	switch {
	case !ok:
		return Errorf(CodeInternal, "no action %q", a)
	case r.from != nil && s.Status == StatusDeleted:
		return Errorf(CodeGone, "%s: sandbox %s is deleted", a, s.ID)
	case r.persistent && !s.Persistent:
		return Errorf(CodeConflict, "%s: sandbox %s is ephemeral; only sandboxes created with persistent: true can do that", a, s.ID)
	case r.exclusive && s.Operation != "":
		return Errorf(CodeConflict, "%s: sandbox %s has another operation under way: %s", a, s.ID, s.Operation)
	case r.from != nil && !slices.Contains(r.from, s.Status):
		return Errorf(CodeConflict, "%s: sandbox %s is %s; it must be %s", a, s.ID, s.Status, orList(r.from))
	}
	return nil
}

func orList(statuses []Status) string {
	if len(statuses) > 4 {
		return "neither deleting nor deleted"
	}
	names := make([]string, len(statuses))
	for i, s := range statuses {
		names[i] = string(s)
	}
	if n := len(names); n > 1 {
		return fmt.Sprintf("%s or %s", strings.Join(names[:n-1], ", "), names[n-1])
	}
	return names[0]
}
