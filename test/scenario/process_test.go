package scenario

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
	"skerry.dev/skerry/test/testimage"
)

// TestTimeoutKillsAll is cases 1 and 2: children, children in sessions of their
// own, and programs that ignore every signal.
func TestTimeoutKillsAll(t *testing.T) {
	sb := create(t, clientCreate(testimage.Shell))
	for name, script := range map[string]string{
		"child":   "sleep 301 & exec sleep 301",
		"session": "setsid sleep 301 & exec sleep 301",
		"deaf":    "trap '' TERM INT HUP ALRM QUIT; while :; do sleep 301; done",
	} {
		r, err := sb.Run(t.Context(), client.RunOptions{Argv: []string{"sh", "-c", script}, Timeout: time.Second})
		if err != nil || r.Reason != skerry.ReasonTimedOut || (r.ExitCode != nil && *r.ExitCode == 0) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
		if got := sb.shell(t, "ps | grep -c '[s]leep 301'; true"); got != "0\n" {
			t.Errorf("%s: %s processes are left", name, strings.TrimSpace(got))
		}
	}
}

// TestOrphansAreReaped is case 4, with the agent as process 1 of a machine.
func TestOrphansAreReaped(t *testing.T) {
	sb := create(t, clientCreate(testimage.Shell))
	sb.shell(t, "for i in $(seq 300); do (sleep 0.05 &) ; done")
	eventually(t, 20*time.Second, func() string {
		if n := strings.TrimSpace(sb.mustRoot(t, "probe", "zombies")); n != "0" {
			return n + " zombies"
		}
		return ""
	})
}

// TestManyCommandsAtOnce is case 15, and the other half of case 4: each gets its
// own exit code.
func TestManyCommandsAtOnce(t *testing.T) {
	sb := create(t, clientCreate(testimage.Shell))
	// The wait for a want of memory begins a moment after the start, and stays.
	eventually(t, 10*time.Second, func() string {
		if files := sb.shell(t, "ls -l /proc/1/fd"); !strings.Contains(files, "memory.events") {
			return "no wait for memory among " + files
		}
		return ""
	})
	descriptors := func() string { return sb.shell(t, "ls /proc/1/fd | wc -l") }
	before := descriptors()
	const commands, each = 64, 4
	var wg sync.WaitGroup
	for i := range commands {
		wg.Go(func() {
			for j := range each {
				want := (i*each + j) % 100
				var out bytes.Buffer
				r, err := sb.Run(t.Context(), client.RunOptions{
					Argv:   []string{"sh", "-c", fmt.Sprintf("head -c 65536 /dev/zero | sha256sum; exit %d", want)},
					Stdout: &out})
				if err != nil || r.ExitCode == nil || *r.ExitCode != want || !strings.HasPrefix(out.String(), sha256OfZeros) {
					t.Errorf("%+v %q, %v; want code %d", r, out.String(), err, want)
				}
			}
		})
	}
	wg.Wait()
	eventually(t, 10*time.Second, func() string {
		if after := descriptors(); after != before {
			return fmt.Sprintf("the agent had %q descriptors and has %q", before, after)
		}
		return ""
	})
}

var sha256OfZeros = fmt.Sprintf("%x", sha256.Sum256(make([]byte, 65536)))

// TestBrokenStreamIsNoSuccess is case 13: whoever breaks the connection, there
// is an error and no exit code.
func TestBrokenStreamIsNoSuccess(t *testing.T) {
	for _, stdin := range []bool{false, true} {
		t.Run(fmt.Sprintf("stdin %v", stdin), func(t *testing.T) {
			sb := create(t, clientCreate(testimage.Shell))
			const streams = 10
			started := make(chan struct{}, streams)
			var wg sync.WaitGroup
			for range streams {
				wg.Go(func() {
					o := client.RunOptions{Argv: []string{"sh", "-c", "echo started; exec sleep 60"}, Stdout: notify(started)}
					if stdin {
						o.Stdin = blockedReader{t.Context()}
					}
					r, err := sb.Run(t.Context(), o)
					if err == nil && r.ExitCode != nil && *r.ExitCode == 0 {
						t.Errorf("a broken stream is a success: %+v", r)
					}
					if err == nil && r.Reason == skerry.ReasonExited {
						t.Errorf("a broken stream has an exit: %+v", r)
					}
				})
			}
			for range streams {
				<-started
			}
			remove(t, sb.ID)
			wg.Wait()
		})
	}
}

// notify is a writer that tells of the first write.
func notify(c chan<- struct{}) writerFunc {
	return func(p []byte) (int, error) {
		c <- struct{}{}
		return len(p), nil
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// blockedReader gives nothing until its context is done.
type blockedReader struct{ ctx context.Context }

func (r blockedReader) Read([]byte) (int, error) {
	<-r.ctx.Done()
	return 0, r.ctx.Err()
}

// TestOutputIsExact is cases 7 and 9: every byte, also without a line's end, and
// of very much the head and the tail.
func TestOutputIsExact(t *testing.T) {
	sb := create(t, clientCreate(testimage.Shell))
	for _, tt := range []struct{ script, want string }{
		{`printf 'a\n\n\nb'`, "a\n\n\nb"},
		{`printf x`, "x"},
		{`printf 'a\r\nb\r'`, "a\r\nb\r"},
		{`head -c 1048576 /dev/zero | tr '\0' A`, strings.Repeat("A", 1<<20)},
	} {
		var streamed bytes.Buffer
		r, err := sb.Run(t.Context(), client.RunOptions{Argv: []string{"sh", "-c", tt.script}, Stdout: &streamed})
		if err != nil || *r.ExitCode != 0 || streamed.String() != tt.want {
			t.Errorf("%s, streamed: %d bytes, %+v, %v", tt.script, streamed.Len(), r, err)
		}
		if got := sb.shell(t, tt.script); got != tt.want {
			t.Errorf("%s, buffered: %d bytes", tt.script, len(got))
		}
	}
	const script = `head -c 20000000 /dev/zero | tr '\0' A; echo END >&2; exit 3`
	r := sb.root(t, "sh", "-c", script)
	if r.ExitCode != 3 || r.Stderr != "END\n" || r.TruncatedStdoutBytes <= 0 || !strings.HasPrefix(r.Stdout, "AAAA") || !strings.HasSuffix(r.Stdout, "AAAA") {
		t.Errorf("much output, buffered: code %d, %d bytes, %d truncated, stderr %q", r.ExitCode, len(r.Stdout), r.TruncatedStdoutBytes, r.Stderr)
	}
	var n countingWriter
	s, err := sb.Run(t.Context(), client.RunOptions{Argv: []string{"sh", "-c", script}, Stdout: &n})
	if err != nil || *s.ExitCode != 3 || n != 20_000_000 {
		t.Errorf("much output, streamed: %d bytes, %+v, %v", n, s, err)
	}
}

type countingWriter int64

func (w *countingWriter) Write(p []byte) (int, error) {
	*w += countingWriter(len(p))
	return len(p), nil
}
