package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/machine"
	"skerry.dev/skerry/internal/machine/qemu/qmp"
)

// instance is a started QEMU. It implements machine.Machine.
type instance struct {
	shape    machine.Shape
	dir      string
	listens  bool // control.sock is ours to remove
	hasImage bool
	ram      *os.File          // memory of a cold boot, or nil
	template *machine.Template // what a restore came from, in files of our own, or nil
	layout   layout            // what it was launched with; empty if it was forked
	door     *os.File          // our end of the way into a zygote until that is frozen, or nil; guarded by mu
	process  *process
	done     chan struct{} // closed when nothing of the machine is left

	saves semaphore // held by the one Save
	still semaphore // held while processors are stopped or started
	plugs bool      // SetMemory was called; guarded by still
	stall *stall

	migrated chan string   // has room for the one final status of a migration
	copied   chan struct{} // has room for the one end of a disk copy's job

	mu       sync.Mutex
	monitor  *qmp.Client // set once, before Start returns
	killed   bool
	shutdown string // reason of QEMU's SHUTDOWN event, or ""
	captured bool
	scratch  *scratchDisk // or nil
	copying  bool         // there is a DiskCopy that is not closed
	swapped  bool         // SetScratch was called
	err      error        // valid after done
}

var _ machine.Machine = (*instance)(nil)

func newInstance(cfg machine.Config) *instance {
	return &instance{
		shape:    cfg.Shape,
		dir:      cfg.Dir,
		listens:  cfg.Control == nil,
		hasImage: len(cfg.Image.Extents) > 0,
		done:     make(chan struct{}),
		saves:    newSemaphore(),
		still:    newSemaphore(),
		stall:    newStall(),
		migrated: make(chan string, 1),
		copied:   make(chan struct{}, 1),
	}
}

// PID is QEMU's.
func (m *instance) PID() int { return m.process.pid }

// Done is closed when QEMU is reaped, its logs are complete and its socket is
// removed.
func (m *instance) Done() <-chan struct{} { return m.done }

// Err is nil before Done is closed. After that it is nil if the guest powered
// off, machine.ErrKilled after Kill, machine.ErrReset if the guest rebooted or
// panicked, else a *skerry.Error with QEMU's exit status and last words.
func (m *instance) Err() error {
	select {
	case <-m.done:
		return m.err
	default:
		return nil
	}
}

// Kill ends QEMU and waits until nothing is left.
func (m *instance) Kill() error {
	m.noteKill()
	m.process.kill()
	<-m.done
	return nil
}

// noteKill notes that the end to come is asked for.
func (m *instance) noteKill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-m.process.done: // it ended by itself
	default:
		m.killed = true
	}
}

// reap waits for QEMU's end and clears up after it.
func (m *instance) reap() {
	<-m.process.done
	m.mu.Lock()
	mon := m.monitor
	m.mu.Unlock()
	if mon != nil {
		<-mon.Done() // after QEMU's last event
		mon.Close()
	}
	m.release()
	m.mu.Lock()
	m.err = m.endLocked()
	m.mu.Unlock()
	close(m.done)
}

func (m *instance) endLocked() error {
	switch {
	case m.killed:
		return machine.ErrKilled
	case m.process.exit != nil || m.shutdown == "":
		return m.process.failure()
	case m.shutdown == "guest-reset":
		return machine.ErrReset
	default:
		return nil
	}
}

// release frees what is not QEMU's own.
func (m *instance) release() {
	if m.process != nil {
		m.process.stderr.Close()
	}
	if m.ram != nil {
		m.ram.Close()
	}
	if d := m.disk(); d != nil {
		d.file.Close()
	}
	if door := m.takeDoor(); door != nil {
		door.Close()
	}
	if m.template != nil {
		m.template.RAM.Close()
		m.template.State.Close()
	}
	if m.listens {
		os.Remove(filepath.Join(m.dir, controlSocket)) // QEMU may have done so
	}
}

func (m *instance) setMonitor(c *qmp.Client) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.monitor = c
}

// monitorGone tells whether QEMU closed the monitor, as it does when it ends.
func (m *instance) monitorGone() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.monitor == nil || m.monitor.Err() != nil
}

// onEvent keeps what is needed of QEMU's events.
func (m *instance) onEvent(e qmp.Event) {
	var data struct {
		ID     string `json:"id"`
		Status string `json:"status"`
		Reason string `json:"reason"`
		// Of BLOCK_IO_ERROR.
		Action  string `json:"action"`
		NoSpace bool   `json:"nospace"`
	}
	if len(e.Data) > 0 && json.Unmarshal(e.Data, &data) != nil {
		return // STOP and RESUME have none
	}
	switch e.Name {
	case "SHUTDOWN":
		m.mu.Lock()
		m.shutdown = data.Reason
		m.mu.Unlock()
	case "BLOCK_IO_ERROR":
		if data.NoSpace && data.Action == "stop" {
			m.stall.wroteInVain()
		}
	case "STOP":
		m.stall.stopped()
	case "RESUME":
		m.stall.resumed()
	case "JOB_STATUS_CHANGE":
		if data.ID == copyName && data.Status == "concluded" {
			select {
			case m.copied <- struct{}{}:
			default:
			}
		}
	case "MIGRATION":
		if data.Status == "completed" || data.Status == "failed" {
			select {
			case m.migrated <- data.Status:
			default: // a second end is not for us
			}
		}
	}
}

// waitMigration waits for the end of a save or a load.
func (m *instance) waitMigration(ctx context.Context) error {
	select {
	case status := <-m.migrated:
		if status == "completed" {
			return nil
		}
		_, reason, err := m.monitor.MigrationStatus(ctx)
		return errors.Join(fmt.Errorf("migration %s: %s", status, reason), err)
	case <-m.monitor.Done():
		return m.monitor.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// requestTimeout bounds a request to a QEMU that hangs.
const requestTimeout = 10 * time.Second

// request runs f against the monitor with a deadline and names the step.
func (m *instance) request(ctx context.Context, step string, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err := f(ctx)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return skerry.Errorf(codeOf(ctx), "%s: %w", step, err)
	}
	return asError(step, err)
}

// exclusive is request for what must not happen in the instant of a save.
func (m *instance) exclusive(ctx context.Context, step string, f func(context.Context) error) error {
	if err := m.still.lock(ctx); err != nil {
		return skerry.Errorf(codeOf(ctx), "%s: %w", step, err)
	}
	defer m.still.unlock()
	return m.request(ctx, step, f)
}

// Resume lets the virtual processors run.
func (m *instance) Resume(ctx context.Context) error {
	return m.exclusive(ctx, "resume machine", m.monitor.Cont)
}

// Pause stops the virtual processors.
func (m *instance) Pause(ctx context.Context) error {
	return m.exclusive(ctx, "pause machine", m.monitor.Stop)
}

// SetMemory asks the guest to have memMiB. It returns when the request is
// accepted; the guest plugs within tenths of a second, but unplugs only what
// it can free.
func (m *instance) SetMemory(ctx context.Context, memMiB int64) error {
	s := m.shape
	if memMiB < s.BaseMiB || memMiB > s.MaxMemMiB || (memMiB-s.BaseMiB)%memoryBlockMiB != 0 {
		return skerry.Invalid("memory_mib", "range", fmt.Sprintf("%d to %d", s.BaseMiB, s.MaxMemMiB),
			"is %d; must be %d to %d in steps of %d", memMiB, s.BaseMiB, s.MaxMemMiB, memoryBlockMiB)
	}
	if s.MaxMemMiB == s.BaseMiB {
		return nil
	}
	return m.exclusive(ctx, "set memory", func(ctx context.Context) error {
		m.plugs = true
		return m.monitor.Set(ctx, "/machine/peripheral/"+pluggableDevice, "requested-size", (memMiB-s.BaseMiB)<<20)
	})
}

// MemoryMiB is the memory the guest has now.
func (m *instance) MemoryMiB(ctx context.Context) (int64, error) {
	if m.shape.MaxMemMiB == m.shape.BaseMiB {
		return m.shape.BaseMiB, nil
	}
	var bytes int64
	err := m.request(ctx, "get memory", func(ctx context.Context) error {
		return m.monitor.Get(ctx, "/machine/peripheral/"+pluggableDevice, "size", &bytes)
	})
	return m.shape.BaseMiB + bytes>>20, err
}
