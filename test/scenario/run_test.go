package scenario

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/google/go-cmp/cmp"

	"skerry.dev/skerry"
	"skerry.dev/skerry/test/testimage"
)

func TestRunExitCodes(t *testing.T) {
	tests := []struct {
		name string
		args []string
		want result // stderr is what it must contain
	}{
		{"ok", []string{"--", "echo", "hello"}, result{"hello\n", "", 0}},
		{"own code", []string{"--", "sh", "-c", "exit 3"}, result{"", "", 3}},
		{"signal", []string{"--", "sh", "-c", "kill -TERM $$"}, result{"", "", 128 + 15}},
		{"no such program", []string{"--", "/no/such"}, result{"", "no such", 127}},
		{"not executable", []string{"--", "/etc/passwd"}, result{"", "permission denied", 126}},
		{"no such user", []string{"-u", "nobody-here", "--", "true"}, result{"", "nobody-here", 125}},
		{"no such image", []string{"--image", "missing", "--", "true"}, result{"", "missing", 125}},
		{"timeout", []string{"--timeout", "1s", "--", "sleep", "60"}, result{"", "killed after 1s", 124}},
		{"streams apart", []string{"--", "sh", "-c", "echo out; echo err >&2"}, result{"out\n", "err\n", 0}},
		{"the image's command line", nil, result{"from the image\n", "", 0}},
		{"user, directory and variables of the image", []string{"--", "sh", "-c", `id -un; pwd; printf '%s|%s|' "$GREETING" "$EMPTY"`},
			result{"app\n/home/app\ntwo words\nand a line||", "", 0}},
		{"user, directory and variables asked for", []string{"-u", "root", "-w", "/tmp", "-e", "GREETING=other", "--", "sh", "-c", `id -u; pwd; echo "$GREETING"`},
			result{"0\n/tmp\nother\n", "", 0}},
		{"no shell at all", []string{"--image", testimage.Static, "--", "/probe", "argv", "a b"}, result{"[\"a b\"]\n", "", 0}},
		{"entrypoint without a shell", []string{"--image", testimage.Static}, result{"hello from /probe\n", "", 0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := cli(t, append([]string{"run"}, tt.args...)...)
			if got.code != tt.want.code || got.stdout != tt.want.stdout || !strings.Contains(strings.ToLower(got.stderr), tt.want.stderr) {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
			if tt.want.stderr == "" && got.stderr != "" {
				t.Errorf("stderr: %q", got.stderr)
			}
		})
	}
	wantNoSandboxes(t)
}

// wantNoSandboxes fails unless everything that a run made is deleted.
func wantNoSandboxes(t *testing.T) {
	t.Helper()
	eventually(t, 30*time.Second, func() string {
		out := mustCLI(t, "sandbox", "list", "-o", "json")
		if list := decode[[]skerry.Sandbox](t, out); len(list) > 0 {
			return out
		}
		return ""
	})
}

// TestArgvUnchanged is case 12.
func TestArgvUnchanged(t *testing.T) {
	argv := []string{"", "a b", `"double"`, "'single'", "$HOME", "*", "&&", ";", "|", `back\slash`, "tab\there", "new\nline", "--flag", "-", "--", "ünïcode", "$(id)", "`id`", "%s", " "}
	out := mustCLI(t, append([]string{"run", "--", "probe", "argv"}, argv...)...)
	if d := cmp.Diff(argv, decode[[]string](t, out)); d != "" {
		t.Error(d)
	}
}

// TestStandardInput is cases 5 and 6.
func TestStandardInput(t *testing.T) {
	sb := create(t, clientCreate(testimage.Shell))
	name := sb.Name
	t.Run("piped", func(t *testing.T) {
		input := strings.Repeat("0123456789abcdef", 8<<20/16)
		want := fmt.Sprintf("%x  -\n", sha256Of(input))
		for _, script := range []string{"sha256sum", "sleep 1; sha256sum"} {
			if got := cliInput(t, input, "sandbox", "exec", name, "--", "sh", "-c", script); got.stdout != want || got.code != 0 {
				t.Errorf("%s: %+v, want %q", script, got, want)
			}
		}
	})
	t.Run("closed by the program", func(t *testing.T) {
		input := strings.Repeat("x", 8<<20)
		if got := cliInput(t, input, "sandbox", "exec", name, "--", "sh", "-c", "exec 0<&-; exit 4"); got.code != 4 {
			t.Errorf("%+v", got)
		}
	})
	t.Run("never ending", func(t *testing.T) {
		for _, tt := range []struct {
			args []string
			code int
		}{
			{[]string{name, "--", "echo", "hi"}, 0},
			{[]string{"--timeout", "1s", name, "--", "sleep", "60"}, 124},
			{[]string{"--timeout", "1s", name, "--", "cat"}, 124},
		} {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			cmd := server.Command(t.Context(), append([]string{"sandbox", "exec"}, tt.args...)...)
			cmd.Stdin = r
			if got := finish(t, cmd); got.code != tt.code {
				t.Errorf("%q: %+v, want code %d", tt.args, got, tt.code)
			}
			r.Close()
			w.Close()
		}
	})
	t.Run("none", func(t *testing.T) {
		r, err := sb.Execute(t.Context(), skerry.ExecuteRequest{Command: "cat"})
		if err != nil || r.ExitCode != 0 || r.Result != "" {
			t.Errorf("cat without input: %+v, %v", r, err)
		}
	})
}

// TestTerminal runs a program on a terminal, from a terminal.
func TestTerminal(t *testing.T) {
	cmd := server.Command(t.Context(), "run", "-t", "--", "sh", "-c", "stty size; tty; read line; echo got $line; exit 5")
	term, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 33, Cols: 111})
	if err != nil {
		t.Fatal(err)
	}
	defer term.Close()
	if _, err := io.WriteString(term, "typed\r"); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	io.Copy(&out, term) // ends with EIO when the program has
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 5 {
		t.Errorf("exit: %v", err)
	}
	for _, want := range []string{"33 111", "/dev/pts/", "got typed"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in %q", want, out.String())
		}
	}
	wantNoSandboxes(t)
}

// TestInterruptDeletes sends SIGINT during a run.
func TestInterruptDeletes(t *testing.T) {
	cmd := server.Command(t.Context(), "run", "--", "sh", "-c", "echo started; sleep 300")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(stdout, make([]byte, len("started"))); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 130 {
		t.Errorf("exit: %v", err)
	}
	wantNoSandboxes(t)
}

// TestOutputFormats checks that results are JSON when nobody looks on, and that
// errors are one line with the id of the request.
func TestOutputFormats(t *testing.T) {
	name := "formats"
	made := decode[skerry.Sandbox](t, mustCLI(t, "sandbox", "create", "--name", name, "--label", "team=a", "-e", "A=b"))
	t.Cleanup(func() { remove(t, made.ID) })
	got := decode[skerry.Sandbox](t, mustCLI(t, "sandbox", "get", name, "-o", "json"))
	if got.ID != made.ID || got.Status != skerry.StatusRunning || got.Labels["team"] != "a" {
		t.Errorf("got %+v", got)
	}
	if table := mustCLI(t, "sandbox", "get", name, "-o", "table"); json.Valid([]byte(table)) || !strings.Contains(table, name) {
		t.Errorf("table: %q", table)
	}
	for _, tt := range []struct {
		code int
		args []string
	}{
		{2, []string{"sandbox", "create", "--name", "-bad"}},
		{2, []string{"sandbox", "create", "--memory", "64"}},
		{3, []string{"sandbox", "get", "nothing"}},
		{4, []string{"sandbox", "create", "--name", name, "--cpu", "2", "--idempotency-key", "other"}},
		{7, []string{"sandbox", "wait", name, "--until", "deleted", "--timeout", "1s"}},
	} {
		r := cli(t, tt.args...)
		if r.code != tt.code || r.stdout != "" || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%q: %+v, want code %d and one line on stderr", tt.args, r, tt.code)
		}
	}
	if r := cli(t, "sandbox", "get", "nothing"); !strings.Contains(r.stderr, "(request ") {
		t.Errorf("no request id: %q", r.stderr)
	}
	for name, want := range map[string]string{"api_url": server.URL, "api_key": server.APIKey} {
		if got := strings.TrimSpace(mustCLI(t, "config", "get", name)); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

// TestCopy copies files and directories both ways (cases 17 and 20).
func TestCopy(t *testing.T) {
	sb := create(t, clientCreate(testimage.Shell))
	dir := t.TempDir()
	t.Run("sizes", func(t *testing.T) {
		for _, size := range []int{0, 1, 4095, 4096, 18433, 65536, 1<<20 - 1, 1<<20 + 1, 16 << 20} {
			local := filepath.Join(dir, fmt.Sprint("file-", size))
			content := strings.Repeat("skerry!", size/7+1)[:size]
			if err := os.WriteFile(local, []byte(content), 0o640); err != nil {
				t.Fatal(err)
			}
			remote := sb.Name + ":/tmp/copied"
			mustCLI(t, "sandbox", "cp", local, remote)
			want := fmt.Sprintf("%x", sha256Of(content))
			if got := sb.shell(t, "sha256sum </tmp/copied; stat -c '%s %a' /tmp/copied"); got != fmt.Sprintf("%s  -\n%d 640\n", want, size) {
				t.Errorf("%d bytes: in the sandbox %q, want %s", size, got, want)
			}
			mustCLI(t, "sandbox", "cp", remote, local+".back")
			if back, err := os.ReadFile(local + ".back"); err != nil || string(back) != content {
				t.Errorf("%d bytes: came back as %d bytes, %v", size, len(back), err)
			}
		}
	})
	t.Run("directories", func(t *testing.T) {
		from := filepath.Join(dir, "tree")
		if err := exec.Command("sh", "-c", `mkdir -p "$1/a/b c" && echo x >"$1/a/b c/f" && chmod 750 "$1/a" && ln -s "b c/f" "$1/a/link" && ln "$1/a/b c/f" "$1/hard"`, "-", from).Run(); err != nil {
			t.Fatal(err)
		}
		mustCLI(t, "sandbox", "cp", from, sb.Name+":/tmp/up")
		if got := sb.shell(t, "cd /tmp/up && cat 'a/b c/f' a/link hard && stat -c %a a && readlink a/link"); got != "x\nx\nx\n750\nb c/f\n" {
			t.Errorf("in the sandbox: %q", got)
		}
		back := filepath.Join(dir, "back")
		mustCLI(t, "sandbox", "cp", sb.Name+":/tmp/up", back)
		if out, err := exec.Command("diff", "-r", "--no-dereference", from, back).CombinedOutput(); err != nil {
			t.Errorf("what came back differs: %s", out)
		}
	})
	t.Run("hostile links", func(t *testing.T) {
		evil := filepath.Join(dir, "evil")
		sb.shell(t, "mkdir /tmp/h && ln -s "+evil+" /tmp/h/out && ln -s ../../x /tmp/h/up && ln -s ok /tmp/h/fine && echo ok >/tmp/h/ok && mkfifo /tmp/h/pipe")
		to := filepath.Join(dir, "hostile")
		r := cli(t, "sandbox", "cp", sb.Name+":/tmp/h", to)
		if r.code != 1 || !strings.Contains(r.stderr, "out") {
			t.Errorf("%+v, want code 1 and the name of an entry", r)
		}
		for _, name := range []string{"out", "up", "pipe"} {
			if _, err := os.Lstat(filepath.Join(to, name)); err == nil {
				t.Errorf("%s was copied", name)
			}
		}
		if b, err := os.ReadFile(filepath.Join(to, "fine")); err != nil || string(b) != "ok\n" {
			t.Errorf("a relative link: %q, %v", b, err)
		}
	})
	t.Run("through a planted link", func(t *testing.T) {
		sb.shell(t, "echo secret >/etc/shadow; chmod 600 /etc/shadow")
		if r := cli(t, "sandbox", "exec", sb.Name, "--", "sh", "-c", "mkdir /tmp/p && ln -s /etc/shadow /tmp/p/f"); r.code != 0 {
			t.Fatalf("%+v", r)
		}
		cliInput(t, "overwritten", "sandbox", "cp", "-", sb.Name+":/tmp/p/f")
		if got := sb.shell(t, "cat /etc/shadow"); got != "secret\n" {
			t.Errorf("/etc/shadow is %q", got)
		}
	})
	t.Run("no room", func(t *testing.T) {
		sb.shell(t, "mkdir /tmp/small && mount -t tmpfs -o size=1m none /tmp/small && echo old >/tmp/small/f")
		if r := cliInput(t, strings.Repeat("x", 4<<20), "sandbox", "cp", "-", sb.Name+":/tmp/small/f"); r.code == 0 || !strings.Contains(r.stderr, "no space") {
			t.Errorf("%+v", r)
		}
		if got := sb.shell(t, "cat /tmp/small/f; ls -A /tmp/small"); got != "old\nf\n" {
			t.Errorf("after the failure: %q", got)
		}
	})
}
