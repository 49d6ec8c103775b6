package control

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"skerry.dev/skerry/internal/guestapi"
)

// TestIdle: what counts as use of a sandbox, and since when there is none.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _, toolbox := newActivated(t)
		want := func(what string, busy bool, idle time.Duration) {
			t.Helper()
			synctest.Wait()
			out, err := send(t, a, guestapi.PathStats, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := out.(guestapi.Stats); got.Busy != busy || got.IdleMillis != idle.Milliseconds() {
				t.Errorf("%s: busy %v, idle %d ms; want %v, %v", what, got.Busy, got.IdleMillis, busy, idle)
			}
		}
		want("after activation", false, 0)
		time.Sleep(3 * time.Second)
		mustSend(t, a, guestapi.PathFreeze)
		mustSend(t, a, guestapi.PathThaw)
		want("control messages do not count", false, 3*time.Second)

		open := func(kind byte, first string) net.Conn {
			ours, theirs := net.Pipe()
			ctx, cancel := context.WithCancel(context.Background())
			go func() { a.Handle(ctx, kind, theirs); cancel() }()
			if _, err := ours.Write([]byte(first)); err != nil {
				t.Fatal(err)
			}
			return ours
		}
		request := open(guestapi.StreamToolbox, "GET /hang HTTP/1.1\r\nHost: guest\r\n\r\n")
		want("a request", true, 0)
		time.Sleep(time.Minute)
		want("a long request", true, 0)
		dial := open(guestapi.StreamDial, "\x00\x00")
		request.Close()
		want("a connection", true, 0)
		time.Sleep(time.Second)
		dial.Close()
		want("after both", false, 0)
		time.Sleep(2 * time.Second)
		want("idle", false, 2*time.Second)

		toolbox.running = 1
		want("a process in the background", true, 0)
		time.Sleep(10 * time.Second)
		toolbox.running, toolbox.lastEnd = 0, time.Now()
		time.Sleep(time.Second)
		want("after the process", false, time.Second)

		kept := open(guestapi.StreamToolbox, "GET / HTTP/1.1\r\nHost: guest\r\n\r\n")
		if _, err := kept.Read(make([]byte, 4096)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Second)
		want("a connection between requests", false, 4*time.Second)
		kept.Close()
	})
}
