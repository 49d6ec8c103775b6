package process

import (
	"context"
	"errors"
	"io"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"skerry.dev/skerry"
)

func newTestLog(keep bool) *Log {
	b := &budget{}
	b.reclaim = func() {}
	return newLog(b, keep)
}

// A follower that reads nothing holds the process up for a while, then loses
// frames and is told; one that may lose nothing holds it up for ever.
func TestFollowerPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newTestLog(true)
		slow, err := l.Follow(0, FollowPatience)
		if err != nil {
			t.Fatal(err)
		}
		piece := make([]byte, 32<<10)
		written := make(chan struct{})
		go func() {
			defer close(written)
			for range 200 {
				l.Append(skerry.RunStdout, piece)
			}
			l.end()
		}()
		synctest.Wait()
		select {
		case <-written:
			t.Fatal("the writer did not wait")
		default:
		}
		<-written // the fake clock runs
		_, err = slow.Next(t.Context())
		lost, ok := errors.AsType[*LostError](err)
		if !ok || lost.Lost == 0 {
			t.Fatalf("error %v, want a LostError", err)
		}
		n := int64(0)
		for {
			if _, err := slow.Next(t.Context()); err == io.EOF {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			n++
		}
		if lost.Lost+n != 200 {
			t.Errorf("lost %d and read %d of 200", lost.Lost, n)
		}
		slow.Close()
	})
}

func TestFollowerThatLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newTestLog(false)
		f, err := l.Follow(0, 0)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for range 200 {
				l.Append(skerry.RunStdout, make([]byte, 32<<10))
			}
			l.end()
		}()
		synctest.Wait()
		if used := l.budget.used.Load(); used > maxLogBytes {
			t.Errorf("%d bytes are queued", used)
		}
		for i := int64(1); i <= 200; i++ {
			frame, err := f.Next(t.Context())
			if err != nil || frame.Seq != i {
				t.Fatalf("frame %d, %v, want %d", frame.Seq, err, i)
			}
		}
		if _, err := f.Next(t.Context()); err != io.EOF {
			t.Errorf("error %v at the end", err)
		}
		f.Close()
		if used := l.budget.used.Load(); used != 0 {
			t.Errorf("%d bytes are still counted", used)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		l = newTestLog(true)
		f, _ = l.Follow(0, 0)
		if _, err := f.Next(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v, want cancelled", err)
		}
	})
}

func TestParseSignal(t *testing.T) {
	for name, want := range map[string]syscall.Signal{"TERM": 15, "SIGTERM": 15, "sigint": 2, "9": 9, "64": 64, "0": 0, "65": 0, "-1": 0, "X": 0, "": 0} {
		sig, ok := ParseSignal(name)
		if ok != (want != 0) || ok && sig != want {
			t.Errorf("%q: %d, %t, want %d", name, sig, ok, want)
		}
	}
}

func FuzzParseCursor(f *testing.F) {
	for _, s := range []string{"", "start", "c0", "c15", "c-1", "c+1", "c01", "c99999999999999999999", "x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		position, start, ok := ParseCursor(s)
		if ok && (position < 0 || !start && FormatCursor(position) != s) {
			t.Errorf("%q: %d, %t", s, position, start)
		}
	})
}

func FuzzParseStat(f *testing.F) {
	f.Add("1 (a) b) S 0 1 1 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 1 0 42 1 1")
	f.Add("1 (" + strings.Repeat(")", 30) + " Z 0")
	f.Fuzz(func(t *testing.T, s string) {
		if p, ok := parseStat([]byte(s)); !ok && p.start != 0 && strings.Count(s, " ") < 19 {
			t.Errorf("%q gave %+v", s, p)
		}
	})
}

func FuzzCheckRequest(f *testing.F) {
	f.Add("exec", "ls", "", "none", int64(0), 80, 24)
	f.Add("pty", "", "sh", "pipe", int64(-1), 0, 1<<20)
	f.Fuzz(func(t *testing.T, kind, arg, shell, stdin string, timeout int64, cols, rows int) {
		req := skerry.ProcessRequest{Kind: kind, ShellCommand: arg, Shell: shell, Stdin: stdin, TimeoutMs: timeout,
			Terminal: &skerry.Terminal{Cols: cols, Rows: rows}}
		if checkRequest(&req) == nil && (req.Kind != KindPTY || req.Terminal.Cols < 1 || req.Terminal.Rows > 1<<16-1 || req.TimeoutMs < 0) {
			t.Errorf("accepted %+v", req)
		}
	})
}
