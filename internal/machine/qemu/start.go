package qemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/machine"
	"skerry.dev/skerry/internal/machine/qemu/qmp"
)

// The files in Config.Dir.
const (
	consoleLog    = "console.log" // what the guest writes to its serial console
	qemuLog       = "qemu.log"    // what QEMU writes to stderr
	controlSocket = "control.sock"
)

// Start starts QEMU. A machine started from a template is loaded and paused
// when Start returns, a cold boot runs. On an error nothing is left over.
//
// Errors are *skerry.Error: CodeInvalid for a Config that breaks a rule,
// CodeUnavailable with the end of QEMU's stderr if QEMU is missing or ends,
// CodeTimeout if it hangs.
func (d *Driver) Start(ctx context.Context, cfg machine.Config) (machine.Machine, error) {
	if err := check(cfg); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, d.o.StartTimeout)
	defer cancel()
	start := d.launch
	if cfg.Origin != nil {
		start = d.fork
	}
	m, conn, err := start(cfg)
	if err != nil {
		return nil, err
	}
	if err := m.begin(ctx, conn, cfg); err != nil {
		return nil, m.abandon(ctx, err)
	}
	if cfg.Zygote {
		return &zygote{instance: m, ownUser: d.o.dropsPrivileges()}, nil
	}
	return m, nil
}

// check refuses what could not work, or would do harm.
func check(cfg machine.Config) error {
	s := cfg.Shape
	switch {
	case s.VCPUs < 1:
		return skerry.Invalid("shape.vcpus", "min", "1", "is %d", s.VCPUs)
	case s.BaseMiB < 1:
		return skerry.Invalid("shape.base_mib", "min", "1", "is %d", s.BaseMiB)
	case s.MaxMemMiB < s.BaseMiB || (s.MaxMemMiB-s.BaseMiB)%memoryBlockMiB != 0:
		return skerry.Invalid("shape.max_mem_mib", "min", fmt.Sprint(s.BaseMiB),
			"is %d; must be base_mib or more by a multiple of %d", s.MaxMemMiB, memoryBlockMiB)
	case (cfg.Boot == nil) == (cfg.Template == nil):
		return skerry.Invalid("boot", "exclusive", "", "give exactly one of boot and template")
	case cfg.Zygote && cfg.Origin != nil:
		return skerry.Invalid("zygote", "exclusive", "", "a fork cannot be forked from")
	case (cfg.Zygote || cfg.Origin != nil) && (cfg.Template == nil || cfg.Control == nil || cfg.Net == nil || cfg.Scratch == nil):
		return skerry.Invalid("template", "required", "", "what forks, or is forked, needs template, control, net and scratch")
	}
	if cfg.Scratch != nil {
		if _, err := scratchSize(cfg.Scratch); err != nil {
			return err
		}
	}
	if cfg.Template != nil {
		return checkTemplate(cfg.Template, s)
	}
	return nil
}

// checkTemplate refuses memory that a clone could change for its siblings:
// QEMU punches holes into the file under memory that the guest reports free,
// though it maps it privately. Only the seal stops that.
func checkTemplate(t *machine.Template, s machine.Shape) error {
	seals, err := unix.FcntlInt(t.RAM.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_WRITE == 0 {
		return skerry.Errorf(skerry.CodeInternal, "template memory is not a write-sealed memfd")
	}
	fi, err := t.RAM.Stat()
	if err != nil {
		return skerry.Errorf(skerry.CodeInternal, "template memory: %w", err)
	}
	if want := s.BaseMiB << 20; fi.Size() != want {
		return skerry.Invalid("shape.base_mib", "equal", fmt.Sprint(fi.Size()>>20), "is %d, the template's memory has %d bytes", s.BaseMiB, fi.Size())
	}
	return nil
}

// scratchSize is the size of a writable disk, or the start of one.
func scratchSize(f *os.File) (int64, error) {
	fi, err := f.Stat()
	if err != nil {
		return 0, skerry.Errorf(skerry.CodeInternal, "scratch disk: %w", err)
	}
	if !fi.Mode().IsRegular() || fi.Size() == 0 || fi.Size()%512 != 0 {
		return 0, skerry.Errorf(skerry.CodeInternal, "scratch disk: %s, %d bytes; must be a regular file of whole sectors", fi.Mode(), fi.Size())
	}
	return fi.Size(), nil
}

// launch opens all that QEMU needs and starts the process. The monitor's
// connection is returned; it is not spoken to yet.
func (d *Driver) launch(cfg machine.Config) (_ *instance, _ net.Conn, err error) {
	var fds descriptors
	defer fds.close()
	m := newInstance(cfg)
	var conn, console net.Conn
	defer func() {
		if err != nil {
			m.release()
			for _, c := range []net.Conn{conn, console} {
				if c != nil {
					c.Close()
				}
			}
			err = asError("start machine", err)
		}
	}()
	l := d.layout(cfg.Shape)
	var theirs *os.File
	if conn, theirs, err = socketpair("monitor"); err != nil {
		return nil, nil, err
	}
	l.monitorFD = fds.give(theirs)
	if console, theirs, err = socketpair("console"); err != nil {
		return nil, nil, err
	}
	l.consoleFD = fds.give(theirs)
	for _, open := range []func(*layout, *descriptors, machine.Config) error{openControl, m.openDisks, m.openMemory, d.openStart, m.openDoor} {
		if err = open(&l, &fds, cfg); err != nil {
			return nil, nil, err
		}
	}
	stderr := newBoundedLog(filepath.Join(cfg.Dir, qemuLog))
	pump := &outputPump{from: console, to: newBoundedLog(filepath.Join(cfg.Dir, consoleLog))}
	m.layout = l
	m.process, err = spawn(d.o, l.argv(), fds.files, stderr, pump)
	if err != nil {
		stderr.Close()
		pump.to.Close()
		return nil, nil, err
	}
	go m.reap()
	return m, conn, nil
}

// openControl opens the agent's port and the network interface.
func openControl(l *layout, fds *descriptors, cfg machine.Config) error {
	if cfg.Net != nil {
		l.netFD = fds.lend(cfg.Net)
	}
	if cfg.Control != nil {
		l.controlFD = fds.lend(cfg.Control)
		return nil
	}
	f, err := listen(filepath.Join(cfg.Dir, controlSocket))
	if err != nil {
		return err
	}
	l.controlFD, l.listen = fds.give(f), true
	return nil
}

func (m *instance) openDisks(l *layout, fds *descriptors, cfg machine.Config) error {
	if cfg.Scratch != nil {
		l.scratchFD = fds.lend(cfg.Scratch)
		if err := m.keepScratch(cfg.Scratch, scratchNode); err != nil {
			return err
		}
	}
	if len(cfg.Image.Extents) == 0 {
		return nil
	}
	for _, e := range cfg.Image.Extents {
		f, err := os.Open(e.Path)
		if err != nil {
			return fmt.Errorf("image disk: %w", err)
		}
		l.imageFDs = append(l.imageFDs, fds.give(f))
		fi, err := f.Stat()
		if err != nil {
			return fmt.Errorf("image disk: %w", err)
		}
		if fi.Size() < e.Sectors*512 {
			return fmt.Errorf("image disk: %s has %d bytes, %d sectors are wanted", e.Path, fi.Size(), e.Sectors)
		}
	}
	f, err := newMemfd("image.vmdk", 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteString(vmdk(cfg.Image.Extents)); err != nil {
		return err
	}
	// QEMU finds a descriptor in a set by its access mode, so hand over one
	// that only reads.
	ro, err := reopen(f)
	if err != nil {
		return err
	}
	l.imageVMDK = fds.give(ro)
	return nil
}

// openMemory opens the template's memory, or makes the memory of a cold boot:
// a memfd, which Capture copies.
func (m *instance) openMemory(l *layout, fds *descriptors, cfg machine.Config) error {
	if t := cfg.Template; t != nil {
		l.restore, l.ramFD = true, fds.lend(t.RAM)
		return m.keepTemplate(t)
	}
	f, err := newMemfd("ram", cfg.Shape.BaseMiB<<20)
	if err != nil {
		return err
	}
	m.ram = f
	l.ramFD = fds.lend(f)
	return nil
}

// keepTemplate opens the template's files for as long as the machine lives: a
// save is made of them and of what has changed.
func (m *instance) keepTemplate(t *machine.Template) error {
	ram, err := reopen(t.RAM)
	if err != nil {
		return err
	}
	state, err := reopen(t.State)
	if err != nil {
		ram.Close()
		return err
	}
	m.template = &machine.Template{RAM: ram, State: state, ScratchBytes: t.ScratchBytes}
	return nil
}

// openStart opens what the machine starts from.
func (d *Driver) openStart(l *layout, fds *descriptors, cfg machine.Config) error {
	if cfg.Template != nil {
		return nil
	}
	for _, k := range []struct {
		path string
		fd   *int
	}{{cfg.Boot.KernelPath, &l.kernelFD}, {cfg.Boot.InitrdPath, &l.initrdFD}} {
		f, err := memfdOf(k.path)
		if err != nil {
			return fmt.Errorf("kernel: %w", err)
		}
		*k.fd = fds.give(f)
	}
	l.kernelArgs = cfg.Boot.Args
	return nil
}

// begin connects to the monitor and, for a restore, loads the state.
func (m *instance) begin(ctx context.Context, conn net.Conn, cfg machine.Config) error {
	if cfg.Origin != nil {
		m.setMonitor(qmp.Continue(conn, m.onEvent))
	} else {
		mon, err := qmp.New(ctx, conn, m.onEvent)
		if err != nil {
			return err
		}
		m.setMonitor(mon)
		if cfg.Template == nil {
			return nil
		}
		if err := m.load(ctx, cfg.Template.State); err != nil {
			return err
		}
	}
	if cfg.Scratch == nil {
		return nil
	}
	// The guest's kernel takes the news for a change of the disk and tells
	// all who listen, which is work that most clones can do without.
	if size, err := scratchSize(cfg.Scratch); err != nil || size == cfg.Template.ScratchBytes {
		return err
	}
	return m.announceScratch(ctx, scratchNode, cfg.Scratch)
}

// load reads the device state and waits for the end of that.
func (m *instance) load(ctx context.Context, state *os.File) error {
	own, err := reopen(state) // clones load at once: each needs an offset of its own
	if err != nil {
		return err
	}
	defer own.Close()
	share, err := ignoresShared(own)
	if err != nil {
		return err
	}
	if _, err := own.Seek(0, io.SeekStart); err != nil {
		return err
	}
	capabilities := []string{"events"}
	if share {
		capabilities = append(capabilities, "x-ignore-shared")
	}
	if err := m.monitor.GetFD(ctx, "state", own); err != nil {
		return err
	}
	if err := m.monitor.SetMigrationCapabilities(ctx, capabilities...); err != nil {
		return err
	}
	if err := m.monitor.MigrateIncoming(ctx, "fd:state"); err != nil {
		return err
	}
	return m.waitMigration(ctx)
}

// endGrace is how long a QEMU that closed the monitor may take to end by
// itself: its exit status and last words explain more than the broken
// connection does.
const endGrace = time.Second

// abandon ends a machine that could not begin, and says why it could not.
func (m *instance) abandon(ctx context.Context, err error) error {
	if ctx.Err() == nil && m.monitorGone() {
		select {
		case <-m.done:
			err = m.process.failure()
		case <-time.After(endGrace):
		}
	}
	m.Kill()
	if ctx.Err() != nil {
		return skerry.Errorf(codeOf(ctx), "start machine: %w%s", err, m.logTail())
	}
	return asError("start machine", err)
}

func (m *instance) logTail() string {
	if t := m.process.stderr.tail(); t != "" {
		return ": " + t
	}
	return ""
}

// asError gives err the step and keeps the code it has; of others it is
// CodeExhausted for a full disk, else CodeUnavailable.
func asError(step string, err error) error {
	code := skerry.CodeUnavailable
	var e *skerry.Error
	if errors.As(err, &e) || skerry.DiskFull(err) {
		code = skerry.CodeOf(err)
	}
	return skerry.Errorf(code, "%s: %w", step, err)
}
