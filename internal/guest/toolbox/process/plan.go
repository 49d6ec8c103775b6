package process

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"path/filepath"
	"slices"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/guest/toolbox/account"
)

// Defaults are what a sandbox gives every process.
type Defaults struct {
	User       account.User
	WorkingDir string // the image's, or "" for the user's home
	ImageEnv   []string
	Env        map[string]string
}

// Exit codes of what could not be started, as shells have them.
const (
	exitCannotExecute = 126
	exitNotFound      = 127
)

// plan is a request, checked and resolved.
type plan struct {
	spec Spec // without Files
	user account.User
	info skerry.Process
}

// failure is why a program cannot be executed. The request was fine: the result
// is a process that failed.
type failure struct {
	exitCode int
	err      error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// refuse returns an error in the client's request.
func refuse(code, format string, args ...any) *skerry.ToolboxError {
	return &skerry.ToolboxError{StatusCode: http.StatusBadRequest, Code: code, Message: fmt.Sprintf(format, args...)}
}

// newPlan checks a request and resolves user, directory, environment and
// program. The error is a *skerry.ToolboxError for a bad request, or a *failure,
// with which there is a plan too.
func newPlan(d *Defaults, users account.Database, req *skerry.ProcessRequest) (*plan, error) {
	if err := checkRequest(req); err != nil {
		return nil, err
	}
	p := &plan{user: d.User}
	if req.User != "" {
		user, err := users.Lookup(req.User)
		if err != nil {
			return nil, refuse(skerry.ToolboxUnknownUser, "%v", err)
		}
		p.user = user
	}
	term := ""
	if req.Kind == KindPTY {
		term = "xterm-256color"
		if req.Terminal != nil && req.Terminal.Term != "" {
			term = req.Terminal.Term
		}
	}
	env := buildEnvironment(d, p.user, term, req.Env)
	p.fill(req, env)
	err := p.user.Do(func() error { return p.resolve(d, req, env.values["PATH"]) })
	if refused, ok := errors.AsType[*skerry.ToolboxError](err); ok {
		return nil, refused
	}
	if err == nil {
		err = checkSize(p.spec.Argv, p.spec.Env)
	}
	if err != nil {
		return p, asFailure(err)
	}
	return p, nil
}

func (p *plan) fill(req *skerry.ProcessRequest, env *environment) {
	id := skerry.NewProcessID()
	p.spec = Spec{ID: string(id), Env: env.list(), UID: p.user.UID, GID: p.user.GID, Groups: p.user.Groups,
		Terminal: req.Kind == KindPTY}
	p.info = skerry.Process{
		ID: id, Kind: req.Kind, Argv: req.Argv, ShellCommand: req.ShellCommand, Shell: req.Shell,
		Env: req.Env, User: p.user.Name, Login: req.Login, Name: req.Name, Stdin: req.Stdin,
		Terminal: req.Terminal, TimeoutMs: req.TimeoutMs, KeepLogs: req.KeepLogs,
	}
}

// resolve finds directory and program, with the rights of the user.
func (p *plan) resolve(d *Defaults, req *skerry.ProcessRequest, path string) error {
	dir, err := workingDir(d, p.user, req.Cwd)
	if err != nil {
		return err
	}
	p.spec.Dir, p.info.Cwd = dir, dir
	argv := req.Argv
	if len(argv) == 0 {
		shell, err := findShell(req.Shell, path, dir)
		if err != nil {
			return refuse(skerry.ToolboxNoShell, "%v", err)
		}
		p.info.ResolvedShell = shell
		argv = []string{shell}
		if req.Login {
			argv = append(argv, "-l")
		}
		if req.ShellCommand != "" {
			argv = append(argv, "-c", req.ShellCommand)
		}
	}
	p.spec.Argv = argv
	p.spec.Path, err = lookPath(argv[0], path, dir)
	return err
}

// workingDir returns where the process starts: the request's directory
// (relative to the default), the image's, the user's home, or, only if that does
// not exist, "/".
func workingDir(d *Defaults, user account.User, cwd string) (string, error) {
	dir := d.WorkingDir
	if dir == "" {
		dir = user.Home
	}
	if filepath.IsAbs(cwd) {
		dir = filepath.Clean(cwd)
	} else {
		dir = filepath.Join("/", dir, cwd)
	}
	if err := checkDir(dir); err != nil {
		if cwd == "" && d.WorkingDir == "" {
			return "/", nil
		}
		return "", refuse(skerry.ToolboxInvalidCwd, "cwd %s: %v", dir, err)
	}
	return dir, nil
}

// asFailure turns an error of lookPath, checkSize or Spawner.Start into the
// result of a process.
func asFailure(err error) *failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	if errors.Is(err, errNotFound) || errors.Is(err, fs.ErrNotExist) {
		return &failure{exitNotFound, err}
	}
	return &failure{exitCannotExecute, err}
}

// checkRequest refuses what has no meaning, and sets the defaults.
func checkRequest(req *skerry.ProcessRequest) error {
	const body = skerry.ToolboxInvalidBody
	setDefault(&req.Kind, KindExec)
	setDefault(&req.Stdin, StdinNone)
	setDefault(&req.KeepLogs, KeepUntilCleanup)
	hasArgv, hasShell := len(req.Argv) > 0, req.ShellCommand != ""
	switch {
	case req.Kind != KindExec && req.Kind != KindPTY:
		return refuse(body, "kind %q: is none of exec, pty", req.Kind)
	case hasArgv && hasShell:
		return refuse(body, "argv and shellCommand exclude one another")
	case !hasArgv && !hasShell && req.Kind != KindPTY:
		return refuse(body, "argv or shellCommand is required")
	case hasArgv && req.Argv[0] == "":
		return refuse(body, "argv[0] is empty")
	case hasArgv && (req.Shell != "" || req.Login):
		return refuse(body, "shell and login go with shellCommand, not with argv")
	case !slices.Contains([]string{"", "auto", "sh", "bash", "zsh"}, req.Shell):
		return refuse(body, "shell %q: is none of auto, sh, bash, zsh", req.Shell)
	case req.SessionID != "":
		return refuse(body, "sessionId: sessions are not supported")
	case req.Stdin != StdinNone && req.Stdin != StdinPipe:
		return refuse(body, "stdin %q: is none of none, pipe", req.Stdin)
	case !slices.Contains([]string{KeepUntilCleanup, KeepOnExitTTL, KeepNone}, req.KeepLogs):
		return refuse(body, "keepLogs %q: is none of until_cleanup, on_exit_ttl, none", req.KeepLogs)
	case req.TimeoutMs < 0 || req.TimeoutMs > maxTimeout.Milliseconds():
		return refuse(body, "timeoutMs %d: is not from 0 to %d", req.TimeoutMs, maxTimeout.Milliseconds())
	}
	if err := checkTerminal(req); err != nil {
		return err
	}
	if err := CheckEnvironment(req.Env); err != nil {
		return refuse(body, "env: %v", err)
	}
	return nil
}

func checkTerminal(req *skerry.ProcessRequest) error {
	if req.Kind != KindPTY {
		if req.Terminal != nil {
			return refuse(skerry.ToolboxInvalidBody, "terminal goes with kind pty")
		}
		return nil
	}
	req.Stdin = StdinPipe
	t := skerry.Terminal{}
	if req.Terminal != nil {
		t = *req.Terminal
	}
	if t.Cols == 0 && t.Rows == 0 {
		t.Cols, t.Rows = 80, 24
	}
	req.Terminal = &t
	return checkSizeOf(t.Cols, t.Rows)
}

func checkSizeOf(cols, rows int) error {
	const most = 1<<16 - 1
	if cols < 1 || cols > most || rows < 1 || rows > most {
		return refuse(skerry.ToolboxInvalidBody, "terminal of %d columns and %d rows: each is from 1 to %d", cols, rows, most)
	}
	return nil
}

func setDefault(s *string, value string) {
	if *s == "" {
		*s = value
	}
}
