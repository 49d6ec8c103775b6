package control

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/guestapi"
)

// newActivated returns an agent of a sandbox, what it did on the way forgotten.
func newActivated(t *testing.T) (*Agent, *fakeSystem, *fakeToolbox) {
	t.Helper()
	a, system, toolbox := newAgent(t)
	system.mac = make(chan string, 8)
	mustSend(t, a, guestapi.PathActivate)
	system.did, system.errs = nil, map[string]error{}
	return a, system, toolbox
}

// TestFreezeAndThaw: what is done in which order, and that a freeze that did not
// come off leaves nothing frozen.
func TestFreezeAndThaw(t *testing.T) {
	const processes, disk = "freeze processes", "freeze disk for 5s"
	thaw := []string{"thaw disk", "thaw processes"}
	both := guestapi.Freeze{Processes: true, Disk: true}
	for _, tt := range []struct {
		name string
		in   guestapi.Freeze
		fail string
		want []string
	}{
		{"nothing", guestapi.Freeze{}, "", nil},
		{"processes", guestapi.Freeze{Processes: true}, "", []string{processes}},
		{"disk", guestapi.Freeze{Disk: true}, "", []string{disk}},
		{"disk for a time", guestapi.Freeze{Disk: true, DiskMillis: 70}, "", []string{"freeze disk for 70ms"}},
		{"both", both, "", []string{processes, disk}},
		{"processes do not stop", both, processes, append([]string{processes}, thaw...)},
		{"disk does not stop", both, disk, append([]string{processes, disk}, thaw...)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, system, _ := newActivated(t)
			system.errs[tt.fail] = errors.New("stuck")
			_, err := send(t, a, guestapi.PathFreeze, tt.in)
			if (err != nil) != (tt.fail != "") {
				t.Errorf("error %v", err)
			}
			if diff := cmp.Diff(tt.want, system.did); diff != "" {
				t.Error(diff)
			}
			system.did = nil
			mustSend(t, a, guestapi.PathThaw)
			if diff := cmp.Diff(thaw, system.did); diff != "" {
				t.Error("thaw:", diff)
			}
		})
	}
	a, system, _ := newActivated(t)
	for _, millis := range []int64{-1, 600_001} {
		_, err := send(t, a, guestapi.PathFreeze, guestapi.Freeze{Disk: true, DiskMillis: millis})
		if skerry.CodeOf(err) != skerry.CodeInvalid || len(system.did) > 0 {
			t.Errorf("%d ms: %v, did %q", millis, err, system.did)
		}
	}
}

// TestRenew: nothing runs before everything is new, and a machine where that
// failed never runs anything again.
func TestRenew(t *testing.T) {
	identity := &guestapi.Activation{Env: map[string]string{"A": "fork"}, MAC: "02:00:00:00:00:09"}
	all := []string{"freeze processes", "renew", "thaw disk", "thaw processes"}
	for _, fail := range []string{"", "freeze processes", "renew", "thaw disk", "thaw processes", "environment"} {
		t.Run("fails at "+fail, func(t *testing.T) {
			a, system, toolbox := newActivated(t)
			if fail == "environment" {
				toolbox.envErr = errors.New("bad name")
			}
			system.errs[fail] = errors.New("no entropy")
			_, err := send(t, a, guestapi.PathRenew, guestapi.Renewal{Identity: identity})
			if fail == "" {
				if err != nil || cmp.Diff(all, system.did) != "" || toolbox.env["A"] != "fork" {
					t.Fatalf("%v, did %q, environment %q", err, system.did, toolbox.env)
				}
				mustSend(t, a, guestapi.PathRenew) // may be repeated
				if toolbox.env["A"] != "fork" {
					t.Error("a renewal of the same sandbox took its environment")
				}
				return
			}
			if err == nil {
				t.Fatal("no error")
			}
			if fail != "thaw processes" && strings.Contains(strings.Join(system.did, ","), "thaw processes") {
				t.Errorf("processes were thawed: %q", system.did)
			}
			system.errs, toolbox.envErr = nil, nil
			for _, path := range []string{guestapi.PathThaw, guestapi.PathRenew, guestapi.PathFreeze, guestapi.PathActivate} {
				if _, err := send(t, a, path, struct{}{}); skerry.CodeOf(err) != skerry.CodeConflict {
					t.Errorf("%s afterwards: %v, want a conflict", path, err)
				}
			}
			if a.sayHello().Activated {
				t.Error("hello says activated")
			}
			for _, kind := range []byte{guestapi.StreamToolbox, guestapi.StreamDial} {
				ours, theirs := net.Pipe()
				a.Handle(t.Context(), kind, theirs)
				if n, err := ours.Read(make([]byte, 1)); err == nil {
					t.Errorf("stream %c: read %d bytes, want it closed", kind, n)
				}
			}
			system.did = nil
			mustSend(t, a, guestapi.PathShutdown)
			if got := strings.Join(system.did, ", "); got != "thaw disk, shutdown" || system.grace != 0 {
				t.Errorf("shutdown did %q with grace %v, want what is frozen killed", got, system.grace)
			}
		})
	}
}

// TestRenewalBeatsActivation: the hardware address of an activation that is
// still to be set does not replace that of a renewal.
func TestRenewalBeatsActivation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, system, _ := newAgent(t)
		system.mac = make(chan string, 8)
		for _, m := range []struct {
			path string
			in   any
		}{
			{guestapi.PathActivate, guestapi.Activation{MAC: "source"}},
			{guestapi.PathRenew, guestapi.Renewal{Identity: &guestapi.Activation{MAC: "fork"}}},
			{guestapi.PathRenew, guestapi.Renewal{Identity: &guestapi.Activation{}}},
		} {
			if _, err := send(t, a, m.path, m.in); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * macDelay)
		synctest.Wait()
		for range 2 {
			if mac := <-system.mac; mac != "fork" {
				t.Errorf("hardware address %q", mac)
			}
		}
	})
}

// TestShutdownIsBounded: a process that nothing can end keeps neither the disk
// from being written nor the answer from coming.
func TestShutdownIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, system, toolbox := newActivated(t)
		toolbox.stuck = true
		start := time.Now()
		_, err := send(t, a, guestapi.PathShutdown, guestapi.Shutdown{GraceMillis: 3000})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v, want it to tell", err)
		}
		if took, most := time.Since(start), 3*time.Second+closeTimeout; took > most {
			t.Errorf("took %v, want at most %v", took, most)
		}
		if got := strings.Join(system.did, ", "); got != "thaw disk, thaw processes, shutdown" {
			t.Errorf("did %q", got)
		}
		if system.grace != strayGrace {
			t.Errorf("daemons have %v", system.grace)
		}
	})
}
