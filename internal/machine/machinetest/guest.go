package machinetest

import (
	"bufio"
	"context"
	"crypto/sha256"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry/internal/machine"
)

// deadline bounds one answer of a guest under software emulation on a busy
// host; nothing waits that long when all is well.
const deadline = 60 * time.Second

// VM is a machine and the host's end of its port.
type VM struct {
	machine.Machine
	Dir  string
	t    testing.TB
	conn net.Conn
	in   *bufio.Reader
}

// Pair is a connected pair of stream sockets, the second for the machine.
func Pair(t testing.TB) (net.Conn, *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "host"), os.NewFile(uintptr(fds[1]), "guest")
	conn, err := net.FileConn(ours)
	ours.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(); theirs.Close() })
	return conn, theirs
}

// Start starts a machine with a connected port; t's end kills it. cfg's Dir,
// Control and Net are filled in.
func Start(t testing.TB, d machine.Driver, cfg machine.Config) *VM {
	t.Helper()
	conn, theirs := Pair(t)
	_, network := Pair(t)
	cfg.Dir, cfg.Control, cfg.Net = t.TempDir(), theirs, network
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	m, err := d.Start(ctx, cfg)
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	t.Cleanup(func() { m.Kill() })
	theirs.Close()
	network.Close()
	return &VM{Machine: m, Dir: cfg.Dir, t: t, conn: conn, in: bufio.NewReader(conn)}
}

// Connect takes the port of a machine that was started without Control.
func Connect(t testing.TB, m machine.Machine, dir string) *VM {
	t.Helper()
	conn, err := net.Dial("unix", filepath.Join(dir, "control.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &VM{Machine: m, Dir: dir, t: t, conn: conn, in: bufio.NewReader(conn)}
}

// Try sends a command of guestinit and returns its answer, "ok …" or
// "error …".
func (v *VM) Try(command string) string {
	v.t.Helper()
	if err := v.conn.SetDeadline(time.Now().Add(deadline)); err != nil {
		v.t.Fatal(err)
	}
	if _, err := io.WriteString(v.conn, command+"\n"); err != nil {
		v.t.Fatalf("%s: %v; %s", command, err, v.logs())
	}
	line, err := v.in.ReadString('\n')
	if err != nil {
		v.t.Fatalf("%s: %v; %s", command, err, v.logs())
	}
	return strings.TrimSuffix(line, "\n")
}

// Do sends a command that must succeed and returns its output.
func (v *VM) Do(command string) string {
	v.t.Helper()
	out, ok := strings.CutPrefix(v.Try(command), "ok ")
	if !ok {
		v.t.Fatalf("%s: %s", command, out)
	}
	return out
}

// Hello waits until the guest answers. The port drops what is written before
// the guest has opened it, so it asks again until the answer comes.
func (v *VM) Hello() {
	v.t.Helper()
	end := time.Now().Add(deadline)
	for time.Now().Before(end) {
		if _, err := io.WriteString(v.conn, "echo hello\n"); err != nil {
			v.t.Fatalf("hello: %v; %s", err, v.logs())
		}
		if err := v.conn.SetReadDeadline(time.Now().Add(250 * time.Millisecond)); err != nil {
			v.t.Fatal(err)
		}
		if line, err := v.in.ReadString('\n'); err == nil && line == "ok hello\n" {
			v.drain()
			return
		}
	}
	v.t.Fatalf("the guest does not answer; %s", v.logs())
}

// drain drops the answers to questions that were asked too early.
func (v *VM) drain() {
	v.t.Helper()
	if got := v.Try("echo drained"); got == "ok drained" {
		return
	}
	for {
		line, err := v.in.ReadString('\n')
		if err != nil {
			v.t.Fatal(err)
		}
		if line == "ok drained\n" {
			return
		}
	}
}

// Resume lets the machine run.
func (v *VM) Resume() {
	v.t.Helper()
	if err := v.Machine.Resume(v.t.Context()); err != nil {
		v.t.Fatal(err)
	}
}

// Leave closes the host's end of the port.
func (v *VM) Leave() { v.conn.Close() }

// logs is what the machine wrote last.
func (v *VM) logs() string {
	var b strings.Builder
	for _, name := range []string{"console.log", "qemu.log"} {
		text, _ := os.ReadFile(filepath.Join(v.Dir, name))
		b.WriteString(name + ":\n" + string(text[max(0, len(text)-6000):]) + "\n")
	}
	return b.String()
}

// Wait waits for a condition that something outside makes true.
func Wait(t testing.TB, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	end := time.After(deadline)
	for !condition() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("%s: did not come true", what)
		}
	}
}

// Disk makes a sparse file for a writable disk.
func Disk(t testing.TB, bytes int64) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "scratch.img"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(bytes); err != nil {
		t.Fatal(err)
	}
	return f
}

// digest of a file's content; its offset does not move.
func digest(t testing.TB, f *os.File) [32]byte {
	t.Helper()
	fi, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(f, 0, fi.Size())); err != nil {
		t.Fatal(err)
	}
	return [32]byte(h.Sum(nil))
}

// reconnect gives the port a new host end.
func (v *VM) reconnect() {
	v.t.Helper()
	conn, theirs := Pair(v.t)
	if err := v.Reconnect(v.t.Context(), theirs); err != nil {
		v.t.Fatal(err)
	}
	theirs.Close()
	v.conn.Close()
	v.conn, v.in = conn, bufio.NewReader(conn)
}
