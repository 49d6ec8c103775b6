package scenario

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"skerry.dev/skerry"
	"skerry.dev/skerry/test/testserver"
)

// TestOrdinaryUser runs server and command line as nobody: everything works, and
// what cannot be enforced is said.
func TestOrdinaryUser(t *testing.T) {
	t.Parallel()
	const nobody = 65534
	dir, err := testserver.NewDir(nobody)
	if err != nil {
		t.Fatal(err)
	}
	other, err := testserver.Start(t.Context(), dir, testserver.Options{Args: []string{"--pool", "0"}})
	if err != nil {
		dir.Remove()
		t.Fatal(err)
	}
	t.Cleanup(func() { endOther(t, other) })
	for _, path := range []string{dir.ClientConfig(), filepath.Join(dir.Data(), "client.json")} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, %v; want 0600", path, info.Mode(), err)
		}
	}
	file := filepath.Join(dir.Path, "shell.tar")
	data, err := os.ReadFile(filepath.Join(tempDir, "shell.tar"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data, 0o644); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) string {
		t.Helper()
		r := finish(t, other.Command(t.Context(), args...))
		if r.code != 0 {
			t.Fatalf("%q: %+v", args, r)
		}
		return r.stdout
	}
	run("image", "import", file, "--name", "shell", "--default")
	if got := run("run", "-u", "root", "--", "sh", "-c", "id -u; echo x >/root/f; cat /root/f"); got != "0\nx\n" {
		t.Errorf("run: %q", got)
	}
	sb := decode[skerry.Sandbox](t, run("sandbox", "create", "--name", "mine"))
	if got := strings.Join(sb.Unenforced, " "); got != "resources.cpu resources.cpu_max" {
		t.Errorf("unenforced limits: %q", got)
	}
	if got := run("sandbox", "exec", "mine", "--", "echo", "hello"); got != "hello\n" {
		t.Errorf("exec: %q", got)
	}
	processes, err := dir.Processes()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range processes {
		info, err := os.Stat(filepath.Join("/proc", strconv.Itoa(p.PID)))
		if err == nil && info.Sys().(*syscall.Stat_t).Uid != nobody {
			t.Errorf("process %+v is not of user %d", p, nobody)
		}
	}
	run("sandbox", "delete", "mine")
}
