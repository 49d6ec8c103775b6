package toolbox_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/guest/toolbox"
	"skerry.dev/skerry/internal/guest/toolbox/process"
)

func sh(script string) skerry.ProcessRequest {
	return skerry.ProcessRequest{Argv: []string{"/bin/sh", "-c", script}}
}

// Case 1: a timeout ends the children too, also those with a session of their
// own.
func TestTimeoutEndsTheWholeGroup(t *testing.T) {
	for name, start := range map[string]string{"child": "sleep 300", "session": "setsid sleep 300"} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, nil)
			pidFile := filepath.Join(b.home, "pid")
			req := sh(start + ` & echo $! >` + pidFile + `; exec sleep 300`)
			req.TimeoutMs = 500
			r := b.run(skerry.RunRequest{ProcessRequest: req})
			if r.exit.Reason != skerry.ReasonTimedOut || r.code(t) == 0 || r.exit.Signal != "TERM" {
				t.Errorf("result %+v, want timed_out by TERM", r.exit.ProcessResult)
			}
			pid, err := os.ReadFile(pidFile)
			if err != nil {
				t.Fatal(err)
			}
			if alive(string(pid)) {
				t.Errorf("child %s lives on", pid)
			}
		})
	}
}

// Case 2: what ignores the signal is killed.
func TestTimeoutEscalates(t *testing.T) {
	b := newBox(t, nil)
	req := sh(`trap "" TERM INT HUP ALRM; echo ready; while :; do sleep 0.1; done`)
	req.TimeoutMs = 300
	p := b.start(req)
	got := b.wait(p.ID)
	if got.Reason != skerry.ReasonTimedOut || got.Signal != "KILL" || *got.ExitCode != 137 {
		t.Errorf("result %+v, want timed_out, KILL, 137", got)
	}
	if alive(strconv.Itoa(p.PID)) {
		t.Error("the process lives on")
	}
	b.wantError(408, skerry.ToolboxExecTimeout, "POST", "/process/execute",
		skerry.ExecuteRequest{Command: `trap "" TERM; while :; do sleep 0.1; done`, Timeout: 1})
}

// Cases 1 and 9: what a command put out before its timeout is in the answer, and
// head and tail of what is over the bound.
func TestTimeoutKeepsTheOutput(t *testing.T) {
	b := newBox(t, nil)
	for name, tt := range map[string]struct {
		req  skerry.ExecuteRequest
		want skerry.ExecuteResponse
	}{
		"combined": {skerry.ExecuteRequest{Command: "echo out; echo err >&2; exec sleep 300", Timeout: 1},
			skerry.ExecuteResponse{ExitCode: 143, Signal: "TERM", Result: "out\nerr\n"}},
		"separate": {skerry.ExecuteRequest{Argv: []string{"/bin/sh", "-c", "echo out; sleep 0.1; echo err >&2; exec sleep 300"}, Timeout: 1},
			skerry.ExecuteResponse{ExitCode: 143, Signal: "TERM", Result: "out\nerr\n", Stdout: "out\n", Stderr: "err\n"}},
		"while it ends": {skerry.ExecuteRequest{Command: `exec 2>/dev/null; trap "echo bye; exit 0" TERM; echo hello; while :; do sleep 0.05; done`, Timeout: 1},
			skerry.ExecuteResponse{ExitCode: 124, Signal: "TERM", Result: "hello\nbye\n"}},
		"silent": {skerry.ExecuteRequest{Command: "exec sleep 300", Timeout: 1},
			skerry.ExecuteResponse{ExitCode: 143, Signal: "TERM"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := b.wantError(408, skerry.ToolboxExecTimeout, "POST", "/process/execute", tt.req)
			tt.want.Reason = skerry.ReasonTimedOut
			if diff := cmp.Diff(&tt.want, got.Execution); diff != "" {
				t.Errorf("execution (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("long", func(t *testing.T) {
		got := b.wantError(408, skerry.ToolboxExecTimeout, "POST", "/process/execute",
			skerry.ExecuteRequest{Command: "head -c 3000000 /dev/zero | tr '\\0' A; printf END; exec sleep 300", Timeout: 2}).Execution
		if got == nil {
			t.Fatal("no execution")
		}
		if want := int64(3000003 - 1<<20); got.TruncatedBytes != want || !strings.HasPrefix(got.Result, "AAA") || !strings.HasSuffix(got.Result, "END") {
			t.Errorf("%d bytes, %d truncated, want %d truncated and both ends", len(got.Result), got.TruncatedBytes, want)
		}
	})
}

// A program that answers the timeout with success has timed out nevertheless.
func TestTimeoutIsNeverSuccess(t *testing.T) {
	b := newBox(t, nil)
	req := sh(`trap "exit 0" TERM; while :; do sleep 0.02; done`)
	req.TimeoutMs = 300
	got := b.wait(b.start(req).ID)
	if got.Reason != skerry.ReasonTimedOut || got.ExitCode == nil || *got.ExitCode != 124 || got.Signal != "TERM" {
		t.Errorf("result %+v, want timed_out, 124", got)
	}
}

// Case 5, the API's part: without standard input there is an end of file.
func TestNoStdinIsEndOfFile(t *testing.T) {
	b := newBox(t, nil)
	got := b.execute(skerry.ExecuteRequest{Argv: []string{"cat"}})
	if got.ExitCode != 0 || got.Result != "" {
		t.Errorf("cat: %+v", got)
	}
}

// Case 7: output is exact, per stream, buffered and streamed.
func TestOutputIsExact(t *testing.T) {
	b := newBox(t, nil)
	for name, test := range map[string]struct{ script, stdout, stderr string }{
		"blank lines":  {`printf 'a\n\n\nb'`, "a\n\n\nb", ""},
		"no newline":   {`printf x`, "x", ""},
		"one long":     {`head -c 1048576 /dev/zero | tr '\0' A`, strings.Repeat("A", 1<<20), ""},
		"crlf":         {`printf 'a\r\nb\r\n' >&2`, "", "a\r\nb\r\n"},
		"both streams": {`printf out; printf err >&2`, "out", "err"},
		"utf-8":        {`printf 'h\303\251llo \360\237\246\200'`, "héllo 🦀", ""},
		"nothing":      {`:`, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := b.run(skerry.RunRequest{ProcessRequest: sh(test.script)})
			if r.stdout.String() != test.stdout || r.stderr.String() != test.stderr || r.code(t) != 0 {
				t.Errorf("run: %d and %d bytes, want %d and %d", r.stdout.Len(), r.stderr.Len(), len(test.stdout), len(test.stderr))
			}
			got := b.execute(skerry.ExecuteRequest{Argv: sh(test.script).Argv})
			if got.Stdout != test.stdout || got.Stderr != test.stderr {
				t.Errorf("execute: %d and %d bytes", len(got.Stdout), len(got.Stderr))
			}
			id := b.start(sh(test.script)).ID
			b.wait(id)
			if out := b.allLogs(id, "start"); out["stdout"] != test.stdout || out["stderr"] != test.stderr {
				t.Errorf("logs: %d and %d bytes", len(out["stdout"]), len(out["stderr"]))
			}
		})
	}
	every := make([]byte, 256)
	script := "printf '"
	for i := range every {
		every[i] = byte(i)
		script += fmt.Sprintf(`\%03o`, i)
	}
	if r := b.run(skerry.RunRequest{ProcessRequest: sh(script + "'")}); !slices.Equal(r.stdout.Bytes(), every) {
		t.Errorf("binary output: %q", r.stdout.Bytes())
	}
}

// allLogs pages through a process's output.
func (b *box) allLogs(id skerry.ProcessID, cursor string) map[string]string {
	b.Helper()
	out := map[string]string{}
	for {
		page := call[skerry.LogPage](b, 200, "GET", "/processes/"+string(id)+"/logs?encoding=base64&limit=3&cursor="+cursor, nil)
		for _, f := range page.Frames {
			data, err := base64.StdEncoding.DecodeString(f.Data)
			if err != nil {
				b.Fatal(err)
			}
			out[f.Channel] += string(data)
		}
		cursor = page.NextCursor
		if page.EOF {
			return out
		}
		if len(page.Frames) == 0 {
			b.Fatal("an ended process gave an empty page that is not the last")
		}
	}
}

func TestCombinedOutputKeepsItsOrder(t *testing.T) {
	b := newBox(t, nil)
	var script, want strings.Builder
	for i := range 100 {
		fmt.Fprintf(&script, "echo out%d; echo err%d >&2; ", i, i)
		fmt.Fprintf(&want, "out%d\nerr%d\n", i, i)
	}
	got := b.execute(skerry.ExecuteRequest{Command: script.String()})
	if diff := cmp.Diff(want.String(), got.Result); diff != "" {
		t.Error(diff)
	}
}

// Case 9: too much output loses its middle, and nothing else.
func TestExecuteKeepsHeadAndTail(t *testing.T) {
	b := newBox(t, nil)
	const script = `printf HEAD; head -c 20000000 /dev/zero | tr '\0' A; printf TAIL; echo END >&2; exit 3`
	got := b.execute(skerry.ExecuteRequest{Command: script, Streams: skerry.StreamsSeparate})
	if got.ExitCode != 3 || got.Stderr != "END\n" || got.TruncatedStderrBytes != 0 {
		t.Errorf("exit code %d, stderr %q", got.ExitCode, got.Stderr)
	}
	marker := fmt.Sprintf("\n[… %d bytes truncated …]\n", got.TruncatedStdoutBytes)
	if !strings.HasPrefix(got.Stdout, "HEADAAA") || !strings.HasSuffix(got.Stdout, "AAATAIL") || !strings.Contains(got.Stdout, marker) {
		t.Errorf("stdout of %d bytes lacks head, tail or marker %q", len(got.Stdout), marker)
	}
	if kept := int64(len(got.Stdout) - len(marker)); kept+got.TruncatedStdoutBytes != 20_000_008 {
		t.Errorf("kept %d and truncated %d bytes", kept, got.TruncatedStdoutBytes)
	}
	r := b.run(skerry.RunRequest{ProcessRequest: sh(script)})
	if r.stdout.Len() != 20_000_008 || r.stderr.String() != "END\n" || r.code(t) != 3 {
		t.Errorf("run: %d bytes, code %d", r.stdout.Len(), r.code(t))
	}
}

// Case 11: values arrive byte for byte, in the order image, sandbox, request.
func TestEnvironment(t *testing.T) {
	big := strings.Repeat("x", 100<<10)
	values := map[string]string{"A": "line1\nline2\n", "B": "x y  z", "C": "a=b=c", "D": "$(touch /tmp/pwn)`id`", "E": "", "F": big}
	b := newBox(t, func(d *toolbox.Defaults) {
		for name, value := range values {
			d.ImageEnv = append(d.ImageEnv, "I"+name+"="+value)
		}
		d.ImageEnv = append(d.ImageEnv, "ONE=image", "TWO=image", "THREE=image", "odd.name=kept")
		d.Env = map[string]string{"TWO": "sandbox", "THREE": "sandbox"}
		for name, value := range values {
			d.Env["S"+name] = value
		}
	})
	env := map[string]string{"THREE": "request"}
	for name, value := range values {
		env["R"+name] = value
	}
	r := b.run(skerry.RunRequest{ProcessRequest: skerry.ProcessRequest{Argv: []string{"cat", "/proc/self/environ"}, Env: env}})
	got := map[string]string{}
	for entry := range strings.SplitSeq(strings.TrimSuffix(r.stdout.String(), "\x00"), "\x00") {
		name, value, _ := strings.Cut(entry, "=")
		got[name] = value
	}
	want := map[string]string{"ONE": "image", "TWO": "sandbox", "THREE": "request", "odd.name": "kept",
		"PATH": process.DefaultPath, "HOME": b.home, "USER": "me", "SHELL": "/bin/sh"}
	for name, value := range values {
		want["I"+name], want["S"+name], want["R"+name] = value, value, value
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("environment (-want +got):\n%.2000s", diff)
	}
	for _, env := range []map[string]string{{"X;touch /tmp/pwn": "1"}, {"": "1"}, {"A=B": "1"}, {"1A": "1"},
		{"A": "nul\x00"}, {"A": strings.Repeat("x", 1<<17)}} {
		b.wantError(400, skerry.ToolboxInvalidBody, "POST", "/processes", skerry.ProcessRequest{Argv: []string{"true"}, Env: env})
	}
}

// Case 12: argv arrives unchanged.
func TestArgv(t *testing.T) {
	b := newBox(t, nil)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"a b", `"double"`, "it's", "$HOME", "*", "&&", `\`, "\t", "", "-c", "print('hi there')"}
	r := b.run(skerry.RunRequest{ProcessRequest: skerry.ProcessRequest{Argv: append([]string{self, "print-argv"}, want...)}})
	var got []string
	if err := json.Unmarshal(r.stdout.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Case 13: what cannot be executed says so, and is never exit 0.
func TestWhatCannotBeExecuted(t *testing.T) {
	b := newBox(t, nil)
	write := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(b.home, name)
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, test := range map[string]struct {
		argv []string
		code int
		text string
	}{
		"unknown":             {[]string{"no-such-program"}, 127, "not found"},
		"unknown path":        {[]string{"/no/such/program"}, 127, "no such file"},
		"directory":           {[]string{b.home}, 126, "is a directory"},
		"not executable":      {[]string{write("plain", "x", 0o644)}, 126, "permission denied"},
		"no format":           {[]string{write("format", "x", 0o755)}, 126, "exec format error"},
		"missing interpreter": {[]string{write("script", "#!/no/such/interpreter\n", 0o755)}, 126, "interpreter"},
		"too big an argument": {[]string{"true", strings.Repeat("x", 1<<17)}, 126, "at most"},
		"too much":            {append([]string{"true"}, slices.Repeat([]string{strings.Repeat("x", 1<<16)}, 40)...), 126, "at most"},
		"NUL":                 {[]string{"true", "a\x00b"}, 126, "NUL"},
	} {
		t.Run(name, func(t *testing.T) {
			p := b.start(skerry.ProcessRequest{Argv: test.argv})
			if p.State != process.StateTerminal || p.Reason != skerry.ReasonFailed || p.ExitCode == nil || *p.ExitCode != test.code || !strings.Contains(p.Error, test.text) {
				t.Errorf("process %+v, want failed, %d, %q", p.ProcessResult, test.code, test.text)
			}
			got := b.execute(skerry.ExecuteRequest{Argv: test.argv})
			if got.ExitCode != test.code || !strings.Contains(got.Result, test.text) || got.Stderr != got.Result {
				t.Errorf("execute %+v", got)
			}
			if r := b.run(skerry.RunRequest{ProcessRequest: skerry.ProcessRequest{Argv: test.argv}}); r.code(t) != test.code {
				t.Errorf("run %+v", r.exit)
			}
		})
	}
	if got := b.execute(skerry.ExecuteRequest{Command: "no-such-program"}); got.ExitCode != 127 {
		t.Errorf("in a shell: %+v", got)
	}
}

// Case 15: many at once; each ends as it did, however often one asks; nothing
// leaks.
func TestManyAtOnce(t *testing.T) {
	b := newBox(t, nil)
	b.execute(skerry.ExecuteRequest{Command: "true"})
	b.client.CloseIdleConnections()
	before := openFiles(t)
	const workers, each = 16, 8
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			for i := range each {
				code := (w*each + i) % 256
				p := b.start(sh(fmt.Sprintf("head -c 65536 /dev/urandom | sha256sum; exit %d", code)))
				for range 2 {
					if got := b.wait(p.ID); got.Reason != skerry.ReasonExited || got.ExitCode == nil || *got.ExitCode != code {
						t.Errorf("%s: %+v, want exit %d", p.ID, got, code)
					}
				}
			}
		})
	}
	all.Wait()
	eventually(t, "descriptors are closed", func() bool {
		b.client.CloseIdleConnections()
		return openFiles(t) <= before
	})
	if n := b.server.Running(); n != 0 {
		t.Errorf("%d are running", n)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestShellCommand(t *testing.T) {
	b := newBox(t, nil)
	r := b.run(skerry.RunRequest{ProcessRequest: skerry.ProcessRequest{ShellCommand: `echo "$0 $((6*7))"`, Shell: "sh"}})
	if !strings.Contains(r.stdout.String(), "sh 42") || !strings.HasSuffix(r.exit.ResolvedShell, "/sh") {
		t.Errorf("stdout %q, shell %q", r.stdout.String(), r.exit.ResolvedShell)
	}
	b.wantError(400, skerry.ToolboxInvalidBody, "POST", "/process/execute", skerry.ExecuteRequest{Command: "  "})
	b.wantError(400, skerry.ToolboxInvalidBody, "POST", "/process/execute", []byte(`{"command":"true","comand":"x"}`))
	e := b.wantError(400, skerry.ToolboxNoShell, "POST", "/processes", skerry.ProcessRequest{ShellCommand: "true", Shell: "zsh"})
	if !strings.Contains(e.Message, "argv") {
		t.Errorf("message %q does not name argv", e.Message)
	}
}

func TestWorkingDirectory(t *testing.T) {
	work := t.TempDir()
	os.Chmod(work, 0o755)
	b := newBox(t, func(d *toolbox.Defaults) { d.WorkingDir = work })
	os.Mkdir(filepath.Join(work, "sub"), 0o755)
	for cwd, want := range map[string]string{"": work, "sub": work + "/sub", b.home: b.home} {
		if got := b.execute(skerry.ExecuteRequest{Argv: []string{"pwd"}, Cwd: cwd}); got.Stdout != want+"\n" {
			t.Errorf("cwd %q: %q, want %q", cwd, got.Stdout, want)
		}
	}
	for _, cwd := range []string{"missing", "/etc/passwd"} {
		b.wantError(400, skerry.ToolboxInvalidCwd, "POST", "/processes", skerry.ProcessRequest{Argv: []string{"true"}, Cwd: cwd})
	}
}

func TestUser(t *testing.T) {
	needRoot(t)
	b := newBox(t, asTester)
	got := b.execute(skerry.ExecuteRequest{Argv: sh("id -u; id -g; id -G; echo $USER $HOME $SHELL; echo again > /dev/stderr").Argv})
	want := fmt.Sprintf("%d\n%[1]d\n%[1]d 61300\ntester %s /bin/bash\n", testerID, b.home)
	if got.Stdout != want || got.Stderr != "again\n" {
		t.Errorf("stdout %q, stderr %q, want %q", got.Stdout, got.Stderr, want)
	}
	for user, want := range map[string]string{"me": "0 0\n", "4321": "4321 0\n", "tester:7": "61234 7\n", "0": "0 0\n"} {
		got := b.execute(skerry.ExecuteRequest{Argv: sh("echo $(id -u) $(id -g)").Argv, User: user, Cwd: "/"})
		if got.Stdout != want {
			t.Errorf("user %s: %q, want %q", user, got.Stdout, want)
		}
	}
	b.wantError(400, skerry.ToolboxUnknownUser, "POST", "/processes", skerry.ProcessRequest{Argv: []string{"true"}, User: "nobody-knows"})
	os.Mkdir(filepath.Join(b.home, "closed"), 0o700)
	b.wantError(400, skerry.ToolboxInvalidCwd, "POST", "/processes", skerry.ProcessRequest{Argv: []string{"true"}, Cwd: "closed"})
}

// The output ends with the process; a descendant that holds the pipe lives on.
func TestDescendantHoldsOutput(t *testing.T) {
	b := newBox(t, nil)
	r := b.run(skerry.RunRequest{ProcessRequest: sh(`(sleep 0.3; while :; do echo late; sleep 0.05; done) & echo $!`)})
	pid := strings.TrimSpace(r.stdout.String())
	if _, err := strconv.Atoi(pid); err != nil || r.code(t) != 0 {
		t.Fatalf("stdout %q", r.stdout.String())
	}
	// It writes now, to a pipe that nobody wants: it must not die of that.
	out := filepath.Join(b.home, "alive")
	b.execute(skerry.ExecuteRequest{Command: "sleep 0.6; kill -0 " + pid + " && touch " + out})
	if _, err := os.Stat(out); err != nil {
		t.Error("the descendant died")
	}
	b.execute(skerry.ExecuteRequest{Command: "kill " + pid})
}

func TestSignals(t *testing.T) {
	b := newBox(t, nil)
	p := b.start(sh(`trap "exit 9" USR1; echo ready; while :; do sleep 0.02; done`))
	eventually(t, "it is ready", func() bool { return b.logText(p.ID) == "ready\n" })
	path := "/processes/" + string(p.ID)
	b.wantError(409, skerry.ToolboxProcessState, "DELETE", path, nil)
	b.wantError(400, skerry.ToolboxInvalidBody, "POST", path+"/signals", map[string]any{"signal": "NOPE"})
	call[any](b, 204, "POST", path+"/signals", map[string]any{"signal": "USR1"})
	if got := b.wait(p.ID); *got.ExitCode != 9 || got.Reason != skerry.ReasonExited {
		t.Errorf("result %+v", got)
	}
	b.wantError(409, skerry.ToolboxProcessState, "POST", path+"/signals", map[string]any{"signal": "TERM"})
	call[any](b, 204, "DELETE", path, nil)
	b.wantError(404, skerry.ToolboxProcessNotFound, "GET", path, nil)

	p = b.start(sh(`trap "" TERM; echo ready; while :; do sleep 0.02; done`))
	eventually(t, "it is ready", func() bool { return b.logText(p.ID) == "ready\n" })
	call[any](b, 204, "POST", "/processes/"+string(p.ID)+"/signals", map[string]any{"signal": "TERM", "escalateAfterMs": 50})
	if got := b.wait(p.ID); got.Signal != "KILL" || *got.ExitCode != 137 || got.Reason != skerry.ReasonSignaled {
		t.Errorf("result %+v", got)
	}
}

func (b *box) logText(id skerry.ProcessID) string {
	page := call[skerry.LogPage](b, 200, "GET", "/processes/"+string(id)+"/logs", nil)
	text := ""
	for _, f := range page.Frames {
		text += f.Data
	}
	return text
}

// Case 6, through the process protocol.
func TestStdin(t *testing.T) {
	b := newBox(t, nil)
	data := strings.Repeat("0123456789abcdef", 8<<20/16)
	for name, script := range map[string]string{"quick": "sha256sum", "slow": "sleep 0.5; sha256sum"} {
		t.Run(name, func(t *testing.T) {
			req := sh(script)
			req.Stdin = process.StdinPipe
			p := b.start(req)
			call[any](b, 204, "POST", "/processes/"+string(p.ID)+"/stdin", map[string]any{"data": data, "eof": true})
			b.wait(p.ID)
			if got, want := b.logText(p.ID), fmt.Sprintf("%x  -\n", sha256.Sum256([]byte(data))); got != want {
				t.Errorf("digest %q, want %q", got, want)
			}
			if got := b.execute(skerry.ExecuteRequest{Argv: req.Argv, Stdin: data}); got.Stdout != fmt.Sprintf("%x  -\n", sha256.Sum256([]byte(data))) {
				t.Errorf("execute: %+v", got)
			}
		})
	}
	req := sh("exec 0<&-; sleep 1")
	req.Stdin = process.StdinPipe
	p := b.start(req)
	b.wantError(409, skerry.ToolboxStdinClosed, "POST", "/processes/"+string(p.ID)+"/stdin", map[string]any{"data": data})
	if got := b.wait(p.ID); *got.ExitCode != 0 {
		t.Errorf("result %+v", got)
	}
	b.wantError(409, skerry.ToolboxStdinClosed, "POST", "/processes/"+string(p.ID)+"/stdin", map[string]any{"data": "x"})
}

func TestWaitAndList(t *testing.T) {
	b := newBox(t, nil)
	p := b.start(skerry.ProcessRequest{Argv: []string{"sleep", "60"}, Name: "sleeper"})
	got := call[skerry.ProcessResult](b, 200, "GET", "/processes/"+string(p.ID)+"/wait?timeoutMs=20", nil)
	if diff := cmp.Diff(skerry.ProcessResult{Reason: skerry.ReasonTimedOut}, got); diff != "" {
		t.Errorf("wait that times out: %s", diff)
	}
	b.start(skerry.ProcessRequest{Argv: []string{"true"}})
	for query, want := range map[string]int{"": 2, "?name=sleeper": 1, "?name=x": 0, "?state=all": 2,
		"?pid=" + strconv.Itoa(p.PID): 1, "?kind=exec": 2, "?kind=pty": 0, "?sessionId=s": 0} {
		if got := call[[]skerry.Process](b, 200, "GET", "/processes"+query, nil); len(got) != want {
			t.Errorf("list %s: %d, want %d", query, len(got), want)
		}
	}
	b.wantError(400, skerry.ToolboxInvalidQuery, "GET", "/processes?state=odd", nil)
	b.wantError(404, skerry.ToolboxNoRoute, "GET", "/nothing", nil)
	if b.server.Running() < 1 {
		t.Error("nothing runs")
	}
}

func TestRequestsThatMeanNothing(t *testing.T) {
	b := newBox(t, nil)
	for _, body := range []string{`{}`, `{"argv":["a"],"shellCommand":"b"}`, `{"argv":[""]}`, `{"argv":["a"],"kind":"x"}`,
		`{"argv":["a"],"stdin":"x"}`, `{"argv":["a"],"timeoutMs":-1}`, `{"argv":["a"],"terminal":{"cols":1,"rows":1}}`,
		`{"argv":["a"],"kind":"pty","terminal":{"cols":0,"rows":9}}`, `{"argv":["a"],"keepLogs":"x"}`, `{"argv":["a"],"sessionId":"s"}`,
		`{"argv":["a"],"login":true}`, `{"argv":["a"]} x`, `{"argv":["a"],"odd":1}`, `[]`, ``, `{"shellCommand":"a","shell":"fish"}`} {
		b.wantError(400, skerry.ToolboxInvalidBody, "POST", "/processes", []byte(body))
	}
	b.wantError(413, skerry.ToolboxTooLarge, "POST", "/processes", []byte(`{"argv":["`+strings.Repeat("x", 5<<20)+`"]}`))
	b.wantError(404, skerry.ToolboxProcessNotFound, "GET", "/processes/prc_none/wait", nil)
}

func TestNotActive(t *testing.T) {
	b := newBox(t, nil)
	fresh := toolbox.New(toolbox.Config{Spawner: process.Host{}})
	w := httptest.NewRecorder()
	fresh.ServeHTTP(w, httptest.NewRequest("GET", "/version", nil))
	if w.Code != 503 {
		t.Errorf("status %d before activation", w.Code)
	}
	if _, err := b.server.Activate(toolbox.Defaults{User: "me"}); err == nil {
		t.Error("a second activation is accepted")
	}
	if _, err := fresh.Activate(toolbox.Defaults{User: "no-such-user"}); err == nil {
		t.Error("an unknown user is accepted")
	}
}

// Closing ends processes with their reason, and requests.
func TestClose(t *testing.T) {
	b := newBox(t, nil)
	results := make(chan *run, 1)
	go func() {
		defer close(results)
		results <- b.run(skerry.RunRequest{ProcessRequest: sh(`trap "" TERM; echo up; while :; do sleep 0.05; done`)})
	}()
	eventually(t, "it runs", func() bool { return b.server.Running() == 1 })
	if err := b.server.Close(t.Context(), 50*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	r, ok := <-results
	if !ok {
		t.Fatal("the run has no result")
	}
	if r.exit.Reason != skerry.ReasonSandboxStopped || r.exit.Signal != "KILL" && r.exit.Signal != "TERM" {
		t.Errorf("result %+v", r.exit.ProcessResult)
	}
	status, _ := b.do("GET", "/version", nil)
	if status != 503 {
		t.Errorf("status %d after closing", status)
	}
}
