package scenario

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
	"skerry.dev/skerry/test/testimage"
)

// forkedFromZygote makes sandboxes until so many were forked from one zygote,
// and returns those. The request must be for ephemeral ones: zygotes are made for
// those alone. With KVM there are no zygotes.
func forkedFromZygote(t *testing.T, n int, req client.CreateSandbox) (forked []sandbox) {
	t.Helper()
	if _, err := os.Stat("/dev/kvm"); err == nil {
		t.Skip("machines are not forked with KVM")
	}
	eventually(t, 3*time.Minute, func() string {
		sb := create(t, req)
		m, err := server.MachineOf(string(sb.Machine))
		switch {
		case err != nil:
			t.Fatal(err)
		case !m.Forked:
			remove(t, sb.ID)
			time.Sleep(time.Second) // creates have the host for themselves
		default:
			forked = append(forked, sb)
		}
		if len(forked) < n {
			return "sandboxes are restored, not forked; end of the log:\n" + server.LogTail(5)
		}
		return ""
	})
	return forked
}

// TestForkedFromZygote: sandboxes that begin as copies of one process have nothing
// in common, and do all that others do.
func TestForkedFromZygote(t *testing.T) {
	sandboxes := forkedFromZygote(t, 3, client.CreateSandbox{Image: testimage.Shell,
		Resources: &skerry.ResourcesRequest{Memory: pointer(0.5), MemoryMax: pointer(2.0)}})
	var ids []identity
	macs := map[string]bool{}
	for i, s := range sandboxes {
		asked := time.Now()
		id := decode[identity](t, s.mustRoot(t, "probe", "identity"))
		wantTime(t, id, asked, time.Now())
		ids = append(ids, id)
		macs[s.mac(t)] = true
		if got := s.shell(t, "ls /root /dev/shm /tmp; hostname"); got != "/dev/shm:\n\n/root:\n\n/tmp:\n"+s.Name+"\n" {
			t.Errorf("sandbox %d finds %q", i, got)
		}
		s.shell(t, "echo "+s.Name+" | tee /root/mine >/dev/shm/mine; sync")
	}
	wantDistinct(t, ids)
	if len(macs) != len(sandboxes) {
		t.Errorf("MAC addresses %v of %d sandboxes", macs, len(sandboxes))
	}
	s := sandboxes[0]
	if r := s.root(t, "probe", "eat", "1300"); r.ExitCode != 0 || r.OOMKilled {
		t.Errorf("two and a half times what is guaranteed: %+v", r)
	}
	c := s.startCounter(t, "50ms")
	snap := s.snapshot(t, "of-a-fork")
	for _, copy := range []sandbox{s, restore(t, snap.Name, skerry.RestoreRequest{})} {
		counted := *c
		counted.check(t, copy)
		if got := copy.shell(t, "cat /root/mine /dev/shm/mine"); got != strings.Repeat(s.Name+"\n", 2) {
			t.Errorf("%s has %q", copy.Name, got)
		}
	}
	for _, s := range sandboxes[1:] {
		if got := s.shell(t, "cat /root/mine /dev/shm/mine"); got != strings.Repeat(s.Name+"\n", 2) {
			t.Errorf("%s has %q", s.Name, got)
		}
	}
	if left, err := filepath.Glob(filepath.Join(server.Data(), "machines", "*", "trial")); err != nil || len(left) > 0 {
		t.Errorf("left of the trials of zygotes: %q, %v", left, err)
	}
}
