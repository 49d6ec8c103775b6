package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
)

const (
	// startTimeout bounds the start of a server, which makes the guest's
	// software from the kernel at the first time.
	startTimeout = 2 * time.Minute
	stopTimeout  = 30 * time.Second
	// attemptTimeout bounds one timed attempt.
	attemptTimeout = 2 * time.Minute
	// guaranteedMiB is what a server may give away: enough for what runs here
	// at once, also on a host that has less, since all of it idles.
	guaranteedMiB = 32 << 10
)

// serverConfig is what the servers of a run differ in.
type serverConfig struct {
	name     string // of its log
	dataDir  string
	pool     int
	zygotes  bool // fork machines where the host can
	coldBoot bool
}

// zygotes is for how many sizes a server keeps a machine to fork others from.
const zygotes = 2

// server is a server process of the run's own.
type server struct {
	*client.Client
	serverConfig
	url, key string
	cmd      *exec.Cmd
	log      *logReader
	http     *http.Client
	warm     map[string]bool // sizes that were created before
}

// startServer starts a server and returns when it answers. What an earlier run
// that was cut off has left in its data directory is deleted.
func (b *bench) startServer(ctx context.Context, cfg serverConfig) (*server, error) {
	s, err := b.launch(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("start server %q: %w", cfg.name, err)
	}
	if err := s.deleteAll(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("delete what an earlier run left: %w", err), s.stop())
	}
	return s, nil
}

func (b *bench) launch(ctx context.Context, cfg serverConfig) (*server, error) {
	if err := b.linkKernel(cfg.dataDir); err != nil {
		return nil, err
	}
	args := []string{"server", "--listen", "127.0.0.1:0", "--data-dir", cfg.dataDir, "--accel", b.opt.accel,
		"--pool", strconv.Itoa(cfg.pool), "--memory-mib", strconv.Itoa(guaranteedMiB)}
	kept := 0
	if cfg.zygotes {
		kept = zygotes
	}
	args = append(args, "--zygotes", strconv.Itoa(kept))
	if cfg.coldBoot {
		args = append(args, "--cold-boot")
	}
	s := &server{serverConfig: cfg, cmd: exec.Command(b.opt.skerry, args...), http: &http.Client{}, warm: map[string]bool{}}
	// The command line's configuration is not to be touched.
	s.cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+filepath.Join(b.opt.dir, "config"))
	// A session of its own, so that Ctrl-C reaches this program only, which
	// then deletes and stops in order.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stderr, err := s.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if s.log, err = readLog(filepath.Join(b.opt.dir, "server-"+cfg.name+".log")); err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	go s.log.run(stderr)
	if err := s.connect(ctx); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

// linkKernel lets a server find the guest kernel that is unpacked already.
func (b *bench) linkKernel(dataDir string) error {
	dir := filepath.Join(dataDir, "kernel")
	if err := os.MkdirAll(dir, 0o700); err != nil || b.opt.kernel == "" {
		return err
	}
	err := os.Symlink(b.opt.kernel, filepath.Join(dir, "debian"))
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	return err
}

// connect waits for the server's address and until a runner can take work.
func (s *server) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	select {
	case s.url = <-s.log.listening:
	case <-s.log.ended:
		return fmt.Errorf("it ended; see %s", s.log.path)
	case <-ctx.Done():
		return fmt.Errorf("it does not listen: %w; see %s", ctx.Err(), s.log.path)
	}
	file, err := client.ReadFile(filepath.Join(s.dataDir, "client.json"))
	if err != nil {
		return err
	}
	s.key = file.APIKey
	if s.Client, err = client.New(client.Config{URL: s.url, APIKey: s.key, UserAgent: "skerry-bench"}); err != nil {
		return err
	}
	return until(ctx, func() (bool, error) {
		runners, err := s.Runners(ctx)
		return err == nil && len(runners) == 1 && runners[0].Online && runners[0].Accel != "", err
	})
}

// alive returns an error when there is nothing left to measure: the run was
// interrupted, or the server has ended.
func (s *server) alive(ctx context.Context) error {
	select {
	case <-s.log.ended:
		return fmt.Errorf("server %q has ended by itself; see %s", s.name, s.log.path)
	default:
		return ctx.Err()
	}
}

// stop ends the server and waits for it. Sandboxes would run on.
func (s *server) stop() error {
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	kill := time.AfterFunc(stopTimeout, func() { s.cmd.Process.Kill() })
	<-s.log.ended // before Wait, which closes the pipe
	err := s.cmd.Wait()
	if !kill.Stop() {
		err = fmt.Errorf("it did not end within %s and was killed", stopTimeout)
	}
	if err != nil {
		return fmt.Errorf("stop server %q: %w; see %s", s.name, err, s.log.path)
	}
	return nil
}

// deleteAll deletes all sandboxes and waits until they are gone.
func (s *server) deleteAll(ctx context.Context) error {
	var ids []skerry.SandboxID
	for sb, err := range s.AllSandboxes(ctx, skerry.SandboxFilter{}) {
		if err != nil {
			return err
		}
		ids = append(ids, sb.ID)
	}
	for _, id := range ids {
		if err := s.delete(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// delete deletes a sandbox and waits until nothing is left of it.
func (s *server) delete(ctx context.Context, id skerry.SandboxID) error {
	sb, err := s.DeleteSandbox(ctx, string(id))
	if err == nil && sb.Status != skerry.StatusDeleted {
		_, err = s.WaitSandbox(ctx, string(id), attemptTimeout, skerry.StatusDeleted)
	}
	if err != nil {
		return fmt.Errorf("delete %s: %w", id, err)
	}
	return nil
}

// create creates a sandbox and returns it when it is running.
func (s *server) create(ctx context.Context, req client.CreateSandbox) (skerry.Sandbox, error) {
	sb, err := s.CreateSandbox(ctx, req)
	if err == nil && sb.Status != skerry.StatusRunning {
		sb, err = s.WaitSandbox(ctx, string(sb.ID), attemptTimeout, skerry.StatusRunning)
	}
	return sb, err
}

// machineStatus is the part of a machine's status.json that is read here.
type machineStatus struct {
	Phase      string           `json:"phase"`
	SandboxID  skerry.SandboxID `json:"sandbox_id"`
	PID        int              `json:"pid"` // of the shim
	MachinePID int              `json:"machine_pid"`
}

func (s *server) machineStatus(id skerry.MachineID) (machineStatus, error) {
	var st machineStatus
	data, err := os.ReadFile(filepath.Join(s.dataDir, "machines", string(id), "status.json"))
	if err == nil {
		err = json.Unmarshal(data, &st)
	}
	return st, err
}

// waitPool waits until the ready pool is full. The server reports its size only
// with its heartbeats, so the machines' own files are read.
func (s *server) waitPool(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	if err := until(ctx, func() (bool, error) { return s.machinesIn("ready", s.pool) }); err != nil {
		return fmt.Errorf("wait for the ready pool to be full: %w", err)
	}
	return nil
}

// waitZygote waits until machines of the size created last are forked, if they
// are on this server.
func (s *server) waitZygote(ctx context.Context, size string) error {
	runners, err := s.Runners(ctx)
	if err != nil || !s.zygotes || runners[0].Accel != "tcg" || runners[0].Arch != "amd64" {
		return err
	}
	s.warm[size] = true
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	if err := until(ctx, func() (bool, error) { return s.machinesIn("frozen", min(len(s.warm), zygotes)) }); err != nil {
		return fmt.Errorf("wait for a machine to fork others from: %w", err)
	}
	return nil
}

// machinesIn reports whether there are as many machines that are of no sandbox
// in a phase.
func (s *server) machinesIn(phase string, want int) (bool, error) {
	entries, err := os.ReadDir(filepath.Join(s.dataDir, "machines"))
	n := 0
	for _, e := range entries {
		// A directory may go while it is looked at.
		if st, err := s.machineStatus(skerry.MachineID(e.Name())); err == nil && st.Phase == phase && st.SandboxID == "" {
			n++
		}
	}
	return n >= want, err
}

// until asks every 10 ms until it is done or fails, or ctx ends.
func until(ctx context.Context, done func() (bool, error)) error {
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// get makes one plain request and reads the answer.
func (s *server) get(ctx context.Context, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+s.key)
	resp, err := s.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", path, resp.Status)
	}
	return nil
}
