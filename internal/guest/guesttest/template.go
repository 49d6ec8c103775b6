package guesttest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"skerry.dev/skerry/internal/guestapi"
)

// Template is a captured machine.
type Template struct {
	vm *VM
	o  Options
}

// Capture quiesces a booted machine, captures and ends it. The machine must
// have been booted with Options.Template.
func (vm *VM) Capture(ctx context.Context) *Template {
	vm.t.Helper()
	if err := vm.Control(ctx, guestapi.PathQuiesce, nil, nil); err != nil {
		vm.t.Fatal(err)
	}
	vm.Link.Close()
	vm.Link = nil
	// The guest needs a moment to see that the host is gone.
	time.Sleep(250 * time.Millisecond)
	return vm.CaptureLive(ctx)
}

// CaptureLive captures and ends a machine in the middle of whatever it does, its
// link and the streams on it included.
func (vm *VM) CaptureLive(ctx context.Context) *Template {
	vm.t.Helper()
	q := vm.qmp(ctx)
	defer q.conn.Close()
	q.run("stop", nil)
	q.run("migrate-set-capabilities", ignoreShared)
	q.run("migrate", map[string]any{"uri": "exec:cat > " + filepath.Join(vm.Dir, "state")})
	q.migrated(ctx)
	vm.Kill()
	return &Template{vm: vm, o: vm.options}
}

// Restore starts a clone of the captured machine. Its agent is not dialed yet,
// see VM.Dial.
func (tpl *Template) Restore(ctx context.Context, start func()) *VM {
	tpl.vm.t.Helper()
	return tpl.RestoreOn(ctx, tpl.vm.Scratch(), start)
}

// RestoreOn is Restore with a copy of another writable disk, which the captured
// machine has not opened.
func (tpl *Template) RestoreOn(ctx context.Context, scratch string, start func()) *VM {
	t := tpl.vm.t
	t.Helper()
	info, err := os.Stat(scratch)
	if err != nil {
		t.Fatal(err)
	}
	vm := &VM{t: t, Dir: t.TempDir(), exited: make(chan struct{}), scratch: info.Size() / sector, options: tpl.o}
	for _, name := range []string{"image", "initramfs", "ram", "state"} {
		if err := os.Symlink(filepath.Join(tpl.vm.Dir, name), filepath.Join(vm.Dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("cp", "--sparse=always", scratch, vm.Scratch()).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	vm.start(Kernel(t), "", "-incoming", "defer")
	q := vm.qmp(ctx)
	defer q.conn.Close()
	q.run("migrate-set-capabilities", ignoreShared)
	q.run("migrate-incoming", map[string]any{"uri": "exec:cat " + filepath.Join(vm.Dir, "state")})
	q.migrated(ctx)
	if vm.scratch != tpl.vm.scratch {
		q.run("block_resize", map[string]any{"device": "scratch", "size": info.Size()})
	}
	start()
	q.run("cont", nil)
	return vm
}

var ignoreShared = map[string]any{"capabilities": []any{map[string]any{"capability": "x-ignore-shared", "state": true}}}

// qmp is a connection to QEMU's monitor, for tests only.
type qmp struct {
	vm   *VM
	conn net.Conn
	in   *bufio.Scanner
}

func (vm *VM) qmp(ctx context.Context) *qmp {
	vm.t.Helper()
	for {
		conn, err := net.Dial("unix", filepath.Join(vm.Dir, "qmp"))
		if err == nil {
			q := &qmp{vm: vm, conn: conn, in: bufio.NewScanner(conn)}
			q.in.Scan() // greeting
			q.run("qmp_capabilities", nil)
			return q
		}
		select {
		case <-time.After(5 * time.Millisecond): // QEMU makes the socket
		case <-vm.exited:
			log, _ := os.ReadFile(filepath.Join(vm.Dir, "qemu.log"))
			vm.t.Fatalf("qemu ended: %s", log)
		case <-ctx.Done():
			vm.t.Fatal(ctx.Err())
		}
	}
}

func (q *qmp) run(command string, args map[string]any) json.RawMessage {
	q.vm.t.Helper()
	out, err := q.try(command, args)
	if err != nil {
		q.vm.t.Fatalf("qmp %s: %v", command, err)
	}
	return out
}

func (q *qmp) try(command string, args map[string]any) (json.RawMessage, error) {
	msg := map[string]any{"execute": command}
	if args != nil {
		msg["arguments"] = args
	}
	if err := json.NewEncoder(q.conn).Encode(msg); err != nil {
		return nil, err
	}
	for q.in.Scan() {
		var reply struct {
			Return json.RawMessage
			Error  struct{ Desc string }
		}
		if err := json.Unmarshal(q.in.Bytes(), &reply); err != nil {
			return nil, err
		}
		switch {
		case reply.Error.Desc != "":
			return nil, errors.New(reply.Error.Desc)
		case reply.Return != nil:
			return reply.Return, nil
		} // else an event
	}
	return nil, fmt.Errorf("connection ended: %w", q.in.Err())
}

func (q *qmp) migrated(ctx context.Context) {
	q.vm.t.Helper()
	for {
		var s struct{ Status string }
		if err := json.Unmarshal(q.run("query-migrate", nil), &s); err != nil {
			q.vm.t.Fatal(err)
		}
		if s.Status == "completed" {
			return
		}
		if s.Status == "failed" {
			q.vm.t.Fatal("migration failed")
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			q.vm.t.Fatalf("migration is %s: %v", s.Status, ctx.Err())
		}
	}
}

// CPU is the processor time QEMU has used; unlike wall time it does not depend
// much on what else the host does.
func (vm *VM) CPU() time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", vm.qemu.Process.Pid))
	if err != nil {
		vm.t.Fatal(err)
	}
	var skip string
	var utime, stime int64
	fields := []any{&skip, &skip, &skip, &skip, &skip, &skip, &skip, &skip, &skip, &skip, &skip, &skip, &skip, &utime, &stime}
	if _, err := fmt.Sscan(string(text), fields...); err != nil {
		vm.t.Fatal(err)
	}
	return time.Duration(utime+stime) * 10 * time.Millisecond
}
