package crash

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
	"skerry.dev/skerry/test/testserver"
)

// TestMachineKilled kills the hypervisor of one sandbox and the shim of another.
// Each fails and says why, a third is not touched, all can be deleted.
func TestMachineKilled(t *testing.T) {
	w := newWorld(t)
	w.start(quiet)
	other := w.create("other")
	for _, victim := range []string{"shim", "hypervisor"} {
		t.Run(victim, func(t *testing.T) {
			w := w.with(t)
			sb := w.create("")
			shim, qemu, err := w.dir.MachineProcesses(string(sb.Machine))
			w.must(err)
			pid := map[string]int{"shim": shim, "hypervisor": qemu}[victim]
			command := make(chan error, 1)
			go func() {
				r, err := w.server.Client.Toolbox(sb.ID).Run(t.Context(), client.RunOptions{Argv: []string{"sleep", "120"}})
				if err == nil {
					err = fmt.Errorf("the command ended with %+v", r)
				}
				command <- err
			}()
			w.must(syscall.Kill(pid, syscall.SIGKILL))
			w.wantFailed(sb.ID, 10*time.Second)
			if err := <-command; strings.Contains(err.Error(), "the command ended") {
				t.Error(err)
			}
			if err := w.server.Echo(t.Context(), sb.ID); skerry.CodeOf(err) != skerry.CodeConflict {
				t.Errorf("a command in a failed sandbox: %v", err)
			}
			w.wantAlive(other)
			w.must(w.server.Delete(t.Context(), sb.ID))
			w.wantOnly(other)
		})
	}
}

// TestMachineKilledWithoutServer kills hypervisor and shim while no server
// runs; the next one finds out.
func TestMachineKilledWithoutServer(t *testing.T) {
	w := newWorld(t)
	w.start(quiet)
	sandboxes := []skerry.Sandbox{w.create("a"), w.create("b"), w.create("c")}
	w.kill()
	_, qemu, err := w.dir.MachineProcesses(string(sandboxes[0].Machine))
	w.must(err)
	shim, _, err := w.dir.MachineProcesses(string(sandboxes[1].Machine))
	w.must(err)
	w.must(syscall.Kill(qemu, syscall.SIGKILL))
	w.must(syscall.Kill(shim, syscall.SIGKILL))
	w.start(quiet)
	for _, sb := range sandboxes[:2] {
		w.wantFailed(sb.ID, 20*time.Second)
	}
	w.wantAlive(sandboxes[2])
}

// TestDamagedTemplate damages the files of a template in several ways. A create
// then makes it anew; no sandbox is built on a damaged one.
func TestDamagedTemplate(t *testing.T) {
	w := newWorld(t)
	w.start(quiet)
	first := w.create("first")
	for _, tt := range []struct {
		name   string
		damage func(dir string) error
	}{
		{"memory", func(dir string) error { return flip(filepath.Join(dir, "ram")) }},
		{"device state", func(dir string) error { return os.Truncate(filepath.Join(dir, "state"), 0) }},
		{"disk", func(dir string) error { return flip(filepath.Join(dir, "scratch.img")) }},
		{"without its disk", func(dir string) error { return os.Remove(filepath.Join(dir, "scratch.img")) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := w.with(t)
			w.stop()
			w.must(tt.damage(w.ephemeralTemplate()))
			w.start(quiet)
			sb := w.create("")
			w.wantAlive(sb)
			w.wantAlive(first)
			w.must(w.server.Delete(t.Context(), sb.ID))
		})
	}
}

// ephemeralTemplate is the directory of the template that ephemeral sandboxes
// are made of.
func (w *world) ephemeralTemplate() string {
	w.t.Helper()
	records, err := filepath.Glob(filepath.Join(w.dir.Data(), "templates", "*", "template.json"))
	w.must(err)
	var found []string
	for _, name := range records {
		b, err := os.ReadFile(name)
		w.must(err)
		var key struct{ Bare, Journal bool }
		w.must(json.Unmarshal(b, &key))
		if !key.Bare && !key.Journal {
			found = append(found, filepath.Dir(name))
		}
	}
	if len(found) != 1 {
		w.t.Fatalf("templates of ephemeral sandboxes %q, want one", found)
	}
	return found[0]
}

// flip changes a byte in the middle of a file.
func flip(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	b := make([]byte, 1)
	at := info.Size() / 2
	if _, err = f.ReadAt(b, at); err == nil {
		b[0] ^= 0xff
		_, err = f.WriteAt(b, at)
	}
	return errors.Join(err, f.Close())
}

// TestDamagedLayer cuts the file of an image's layer short, which is made anew
// from the layer's blob, and then the blob too. Sandboxes then fail and say so
// until the image is imported again.
func TestDamagedLayer(t *testing.T) {
	w := newWorld(t)
	w.start(quiet)
	const digest = "sha256sum /bin/busybox /bin/probe"
	want := w.shell(w.create("whole"), digest)
	w.must(w.server.DeleteAll(t.Context()))

	w.stop()
	w.cutLargest("images/layers/*.img")
	w.start(quiet)
	if got := w.shell(w.create("healed"), digest); got != want {
		t.Errorf("after the layer was damaged: %q, want %q", got, want)
	}
	w.must(w.server.DeleteAll(t.Context()))

	w.stop()
	w.cutLargest("images/layers/*.img")
	w.cutLargest("images/blobs/sha256/*")
	w.start(quiet)
	sb, err := w.server.Create(t.Context(), "")
	if err == nil {
		t.Fatalf("a sandbox runs on half a layer: %+v", sb)
	}
	w.wantFailed(sb.ID, 20*time.Second)
	w.must(w.server.Delete(t.Context(), sb.ID))
	if out, err := w.dir.Command(t.Context(), "image", "delete", "shell").CombinedOutput(); err != nil {
		t.Errorf("delete the damaged image: %v: %s", err, out)
	}
	w.must(w.server.Import(t.Context(), archive, "shell"))
	if got := w.shell(w.create("again"), digest); got != want {
		t.Errorf("after the image was imported again: %q, want %q", got, want)
	}
}

// cutLargest removes the second half of the largest file that a pattern below
// the data directory names.
func (w *world) cutLargest(pattern string) {
	w.t.Helper()
	names, err := filepath.Glob(filepath.Join(w.dir.Data(), pattern))
	w.must(err)
	largest, size := "", int64(0)
	for _, name := range names {
		info, err := os.Stat(name)
		w.must(err)
		if info.Size() > size {
			largest, size = name, info.Size()
		}
	}
	w.must(os.Truncate(largest, size/2))
}

// shell runs a script that must succeed and returns its output.
func (w *world) shell(sb skerry.Sandbox, script string) string {
	w.t.Helper()
	r, err := w.server.Client.Toolbox(sb.ID).Execute(w.t.Context(), skerry.ExecuteRequest{Command: script})
	if err != nil || r.ExitCode != 0 {
		w.t.Fatalf("%s: %+v, %v", script, r, err)
	}
	return r.Result
}

// TestHypervisorMissingOrHanging starts servers whose hypervisor is not there,
// or never answers. A sandbox that runs already goes on; a new one fails in
// bounded time and says why, or waits for a host that can and says that.
func TestHypervisorMissingOrHanging(t *testing.T) {
	w := newWorld(t)
	w.start(quiet)
	running := w.create("running")
	w.stop()
	hanging := filepath.Join(w.dir.Path, "hanging")
	w.must(os.WriteFile(hanging, []byte("#!/bin/sh\nexec sleep 1000\n"), 0o755))
	for _, qemu := range []string{"/nonexistent", hanging} {
		t.Run(filepath.Base(qemu), func(t *testing.T) {
			w := w.with(t)
			w.start(testserver.Options{Args: append([]string{"--qemu", qemu}, quiet.Args...)})
			w.wantAlive(running)
			sb, err := w.server.Create(t.Context(), "")
			if err == nil {
				t.Fatalf("a sandbox runs without a hypervisor: %+v", sb)
			}
			t.Logf("create: %v", err)
			if reason := w.wantFailed(sb.ID, time.Minute); !strings.Contains(reason, filepath.Base(qemu)) {
				t.Errorf("reason %q does not name the program", reason)
			}
			w.must(w.server.Delete(t.Context(), sb.ID))
			w.stop()
		})
	}
	w.start(quiet)
	w.wantAlive(running)
	w.wantAlive(w.create("again"))
}

// mount mounts a tmpfs, until the directory it is in is removed.
func mount(t *testing.T, dir, options string) {
	t.Helper()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", options, "skerry-test", dir).CombinedOutput(); err != nil {
		t.Fatalf("mount: %v: %s; tests need root", err, out)
	}
}
