package scenario

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
)

const makeBig = "head -c 20971520 /dev/urandom >/root/big"

// written is what a cycle of a test writes, without sync: a file of its own, and
// a line of a log.
func (s sandbox) write(t *testing.T, i int) {
	t.Helper()
	s.shell(t, fmt.Sprintf("echo %[1]d >/root/f%[1]d; echo %[1]d >>/root/log", i))
}

// wantWritten fails unless all of cycles 1 to n is there.
func (s sandbox) wantWritten(t *testing.T, n int) {
	t.Helper()
	var want strings.Builder
	for range 2 {
		for i := range n {
			fmt.Fprintln(&want, i+1)
		}
	}
	if got := s.shell(t, fmt.Sprintf("cd /root; for i in $(seq %d); do cat f$i; done; cat log", n)); got != want.String() {
		t.Fatalf("files of %d cycles: %q", n, got)
	}
}

// TestPauseKeepsAll is case 22: over pauses by request and by timer nothing that
// was written is lost, and processes go on.
func TestPauseKeepsAll(t *testing.T) {
	sb := keep(t, client.CreateSandbox{})
	sb.shell(t, makeBig)
	digest := sb.sum(t, "/root/big")
	c := sb.startCounter(t, "50ms")
	const cycles = 6
	for i := 1; i <= cycles; i++ {
		sb.write(t, i)
		if i%2 == 1 {
			sb.operate(t, skerry.Pause)
			mustCLI(t, "sandbox", "resume", sb.Name)
		} else {
			sb.byTimer(t, skerry.ActionPause, skerry.StatusPaused)
			sb.operate(t, skerry.Start)
		}
		sb.wantWritten(t, i)
		c.check(t, sb)
	}
	if got := sb.sum(t, "/root/big"); got != digest {
		t.Errorf("digest after %d cycles: %s, was %s", cycles, got, digest)
	}
}

// TestStopKeepsFiles is cases 22 and 29 for stop and start.
func TestStopKeepsFiles(t *testing.T) {
	sb := keep(t, client.CreateSandbox{})
	sb.shell(t, makeBig)
	digest := sb.sum(t, "/root/big")
	before, address := decode[identity](t, sb.mustRoot(t, "probe", "identity")), sb.mac(t)
	const cycles = 4
	for i := 1; i <= cycles; i++ {
		sb.write(t, i)
		if i%2 == 1 {
			mustCLI(t, "sandbox", "stop", sb.Name)
			sb.operate(t, skerry.Start)
		} else {
			sb.byTimer(t, skerry.ActionStop, skerry.StatusStopped)
			mustCLI(t, "sandbox", "start", sb.Name)
		}
		sb.wantWritten(t, i)
	}
	if got := sb.sum(t, "/root/big"); got != digest {
		t.Errorf("digest after %d cycles: %s, was %s", cycles, got, digest)
	}
	after := decode[identity](t, sb.mustRoot(t, "probe", "identity"))
	if after.Hostname != before.Hostname || after.MachineID != before.MachineID {
		t.Errorf("identity is %+v, was %+v", after, before)
	}
	if got := sb.mac(t); got != address {
		t.Errorf("MAC address %s, was %s", got, address)
	}
	if after.BootID == before.BootID || after.Random == before.Random {
		t.Errorf("random values of the last boot: %+v", after)
	}

	sb.shell(t, `cd /root && dd if=/dev/urandom of=new bs=1M count=50 2>/dev/null && chmod 4751 new && chown 1000:1000 new &&
		chmod u+s new && probe xattr new user.comment kept && probe tree /root >/home/app/tree && mv new moved`)
	sb.operate(t, skerry.Stop)
	sb.operate(t, skerry.Start)
	want := strings.ReplaceAll(sb.shell(t, "cat /home/app/tree"), `"new"`, `"moved"`)
	got := sb.shell(t, "probe tree /root")
	if sorted(got) != sorted(want) || !strings.Contains(got, "user.comment=") || !strings.Contains(got, "mode=104751 uid=1000 gid=1000 size=52428800") {
		t.Errorf("after a stop at once:\n%s\nwant\n%s", got, want)
	}
	if got := sb.shell(t, "dmesg | grep -iE 'ext4.*(error|recover|orphan)'; true"); got != "" {
		t.Errorf("the file system was not closed cleanly: %s", got)
	}
}

// mac is the address of the network card once it is the sandbox's own, which is a
// second after its start.
func (s sandbox) mac(t *testing.T) string {
	t.Helper()
	shared := []string{"52:54:00:12:34:56\n", "02:00:00:00:00:01\n"} // a template's, and one of the ready pool
	var address string
	eventually(t, 30*time.Second, func() string {
		if address = s.shell(t, "cat /sys/class/net/eth0/address"); slices.Contains(shared, address) {
			return "the card has still the address " + address
		}
		return ""
	})
	return address
}

// TestClockOfCopies is case 31: what was saved some time ago comes back to the
// present time, at once.
func TestClockOfCopies(t *testing.T) {
	sb := keep(t, client.CreateSandbox{})
	before := decode[identity](t, sb.mustRoot(t, "probe", "identity"))
	snap := sb.snapshot(t, "clock")
	sb.operate(t, skerry.Pause)
	time.Sleep(3 * time.Second) // that time passes is what is tested
	for _, tt := range []struct {
		name string
		make func() sandbox
	}{
		{"resumed", func() sandbox { sb.operate(t, skerry.Resume); return sb }},
		{"restored", func() sandbox { return restore(t, snap.Name, skerry.RestoreRequest{}) }},
		{"forked", func() sandbox { return sb.fork(t, skerry.ForkRequest{})[0] }},
	} {
		s := tt.make()
		asked := time.Now()
		id := decode[identity](t, s.mustRoot(t, "probe", "identity"))
		wantTime(t, id, asked, time.Now())
		if id.MonotonicNS < before.MonotonicNS {
			t.Errorf("%s: the monotonic clock went back from %d to %d", tt.name, before.MonotonicNS, id.MonotonicNS)
		}
		wantSecond(t, s)
	}
}
