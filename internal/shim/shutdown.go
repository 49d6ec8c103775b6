package shim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"skerry.dev/skerry/internal/guestapi"
)

// shutdownSlack is what the guest may take beyond the grace of its processes to
// write everything to the disk.
const shutdownSlack = 60 * time.Second

// shutdown ends the sandbox: its processes, then, with everything written, the
// machine. A guest that does not come to an end is switched off; the reply says
// so, and its disk is as after a power failure. One that stands still for want
// of room has until then to go on.
func (s *shim) shutdown(ctx context.Context, req ShutdownRequest) (ShutdownReply, error) {
	s.saving.Lock()
	defer s.saving.Unlock()
	if st, _ := s.snapshot(); st.Phase == PhaseStopped {
		return s.ended, nil // the runner's successor asks again
	}
	link, err := s.runningLink()
	if err != nil && !errors.Is(err, errFull) {
		return ShutdownReply{}, err
	}
	var reply ShutdownReply
	grace := time.Duration(req.GraceMillis) * time.Millisecond
	bounded, cancel := context.WithTimeout(ctx, grace+shutdownSlack)
	defer cancel()
	if link != nil {
		err = link.Control(bounded, guestapi.PathShutdown, guestapi.Shutdown{GraceMillis: req.GraceMillis}, nil)
	}
	if st, _ := s.snapshot(); err != nil && st.Phase == PhaseFull {
		err = errFull
	}
	if err != nil {
		reply.Reason = fmt.Sprintf("the guest did not shut down in order and was switched off: %v", err)
		s.log.Warn("shut down", "err", err)
	}
	s.ended = reply
	// First the phase, so that the end of the machine is no failure.
	s.setPhase(PhaseStopped, nil)
	s.killMachine()
	return reply, nil
}
