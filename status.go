package skerry

import "slices"

// Status is the detailed state of a sandbox, as the API and the command line
// report it (Daytona's "Linux Sandboxes" page, column "API status", and its
// "Sandboxes" page for the states of persistent sandboxes).
type Status string

// The statuses.
const (
	StatusQueued   Status = "queued"   // recorded, waits to be published for placement
	StatusPending  Status = "pending"  // published, waits for a runner
	StatusAssigned Status = "assigned" // placed on a runner
	StatusBooting  Status = "booting"  // the microVM is being restored or booted
	StatusRunning  Status = "running"  // accepts toolbox requests
	StatusStopping Status = "stopping"
	StatusStopped  Status = "stopped"
	StatusPausing  Status = "pausing"
	StatusPaused   Status = "paused"
	StatusDeleting Status = "deleting"
	StatusDeleted  Status = "deleted" // nothing is left on the host
	StatusFailed   Status = "failed"  // could not boot or hit an unrecoverable error; Reason says why
	StatusLost     Status = "lost"    // its host is gone
)

// State is the coarse state that client libraries show (column "State").
type State string

// stateOf is the table "State / API status" of the "Linux Sandboxes" page.
var stateOf = map[Status]State{
	StatusQueued:   "queued",
	StatusPending:  "creating",
	StatusAssigned: "creating",
	StatusBooting:  "starting",
	StatusRunning:  "started",
	StatusStopping: "stopping",
	StatusStopped:  "stopped",
	StatusPausing:  "pausing",
	StatusPaused:   "paused",
	StatusDeleting: "destroying",
	StatusDeleted:  "destroyed",
	StatusFailed:   "error",
	StatusLost:     "error",
}

// transitions is the one table of allowed changes: those of any sandbox, and
// what a persistent one can do besides. A delete is allowed in any state, so it
// is not repeated in each row; see CanBecome.
//
// A machine that ends, or a host that fails, leaves a persistent sandbox
// stopped: it is never lost with its host ("Sandboxes" page, ephemeral vs
// persistent). A create that its runner did not come to the end of, as it was
// restarted, waits for a runner again.
var transitions = map[Status]struct{ any, persistent []Status }{
	StatusQueued:   {any: []Status{StatusPending, StatusFailed}},
	StatusPending:  {any: []Status{StatusAssigned, StatusFailed}},
	StatusAssigned: {any: []Status{StatusBooting, StatusPending, StatusFailed, StatusLost}},
	StatusBooting: {any: []Status{StatusRunning, StatusPending, StatusFailed, StatusLost},
		persistent: []Status{StatusStopped, StatusPaused}}, // a start that did not work leaves what was there
	StatusRunning: {any: []Status{StatusFailed, StatusLost},
		persistent: []Status{StatusStopping, StatusPausing, StatusStopped}},
	StatusStopping: {persistent: []Status{StatusStopped, StatusFailed, StatusLost}},
	StatusStopped:  {persistent: []Status{StatusBooting, StatusFailed, StatusLost}},
	StatusPausing:  {persistent: []Status{StatusPaused, StatusRunning, StatusStopped, StatusFailed, StatusLost}},
	StatusPaused:   {persistent: []Status{StatusBooting, StatusStopped, StatusFailed, StatusLost}},
	StatusLost:     {persistent: []Status{StatusStopped, StatusPaused, StatusRunning}}, // its host came back
	StatusDeleting: {any: []Status{StatusDeleted}},
}

// Statuses lists all statuses in the order of a sandbox's life.
func Statuses() []Status {
	return []Status{StatusQueued, StatusPending, StatusAssigned, StatusBooting, StatusRunning,
		StatusStopping, StatusStopped, StatusPausing, StatusPaused,
		StatusDeleting, StatusDeleted, StatusFailed, StatusLost}
}

// Valid reports whether s is one of Statuses.
func (s Status) Valid() bool { _, ok := stateOf[s]; return ok }

// State returns the coarse state, "unknown" for a status it does not know.
func (s Status) State() State {
	if st, ok := stateOf[s]; ok {
		return st
	}
	return "unknown"
}

// CanBecome reports whether the change from s to next is in the table, for a
// persistent sandbox or another.
func (s Status) CanBecome(next Status, persistent bool) bool {
	if next == StatusDeleting {
		return s != StatusDeleting && s != StatusDeleted
	}
	row := transitions[s]
	return slices.Contains(row.any, next) || persistent && slices.Contains(row.persistent, next)
}

// CanReach reports whether some sequence of changes leads from s to target; a
// wait for a target that cannot be reached ends early.
func (s Status) CanReach(target Status, persistent bool) bool {
	seen := map[Status]bool{s: true}
	next := []Status{s}
	for len(next) > 0 {
		from := next[0]
		next = next[1:]
		if from == target {
			return true
		}
		for _, to := range Statuses() {
			if from.CanBecome(to, persistent) && !seen[to] {
				seen[to] = true
				next = append(next, to)
			}
		}
	}
	return false
}

// StatusesNamed lists what a caller means by the name of a status, or by that of
// a coarse state, which may cover several; nil for any other name.
func StatusesNamed(name string) []Status {
	if Status(name).Valid() {
		return []Status{Status(name)}
	}
	var list []Status
	for _, s := range Statuses() {
		if string(s.State()) == name {
			list = append(list, s)
		}
	}
	return list
}

// WaitEnds lists the statuses that end a wait: those waited for, and those of
// the states destroying, destroyed and error, which are its failure ("Linux
// Sandboxes" page, wait for state). Only a wait for the end of a teardown goes
// on while that is under way.
func WaitEnds(until ...Status) []Status {
	ends := slices.Clone(until)
	for _, s := range []Status{StatusDeleting, StatusDeleted, StatusFailed, StatusLost} {
		underWay := s == StatusDeleting && slices.Contains(until, StatusDeleted)
		if !underWay && !slices.Contains(ends, s) {
			ends = append(ends, s)
		}
	}
	return ends
}

// Live reports whether a sandbox with this status may have something on a host.
func (s Status) Live() bool { return s != StatusDeleted }
