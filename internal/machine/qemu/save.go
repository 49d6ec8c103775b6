package qemu

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/machine"
)

// How a running machine is saved. QEMU's own way, a migration, would stop the
// guest for as long as all memory takes, or need userfaultfd, which ordinary
// users may not use; it refuses to work with the image disk's driver; and it
// leaves the disks locked and a machine that fails at the end half migrated.
// So QEMU is only asked for the state of the devices, and its memory is read
// from outside, for the most part while the guest runs. What comes out is in
// the form of a migration stream, which QEMU restores as it does a template.

// save is one save in the making.
type save struct {
	m    *instance
	req  machine.SaveRequest
	head *head

	ram     *ramFile
	older   *delta // or nil: what the base is to its own base
	baseCRC uint32
	base    *pageCopy
	plugged *pageCopy // or nil: no memory is plugged

	state    *os.File
	stateCRC hash.Hash32
	out      *bufio.Writer // to both
	stream   *pageStream   // to out; of plugged
	devices  *os.File      // what QEMU said of its devices

	held []*heldPages // of the last pass

	close []io.Closer
}

// Save implements machine.Machine. Errors are *skerry.Error: CodeUnsupported
// if this process may not read QEMU's memory, CodeTimeout if ctx or QEMU took
// too long, else CodeUnavailable.
func (m *instance) Save(ctx context.Context, req machine.SaveRequest) (machine.Saved, error) {
	if m.template == nil && req.BasePath != "" {
		return machine.Saved{}, skerry.Errorf(skerry.CodeInternal, "save machine: it was booted and has no base")
	}
	if err := m.saves.lock(ctx); err != nil {
		return machine.Saved{}, skerry.Errorf(codeOf(ctx), "save machine: %w", err)
	}
	defer m.saves.unlock()
	s := &save{m: m, req: req}
	defer func() {
		for _, c := range s.close {
			c.Close()
		}
	}()
	saved, err := s.run(ctx)
	if err == nil {
		return saved, nil
	}
	for _, path := range SavedFiles(req.StatePath, req.RAMPath) {
		os.Remove(path)
	}
	if ctx.Err() != nil {
		return machine.Saved{Pause: saved.Pause}, skerry.Errorf(codeOf(ctx), "save machine: %w", err)
	}
	return machine.Saved{Pause: saved.Pause}, asError("save machine", err)
}

// SavedFiles lists the files that Save makes: those of a template, and the
// base, which is there only if the save has one.
func SavedFiles(statePath, ramPath string) []string {
	return append(TemplateFiles(statePath, ramPath), basePath(ramPath))
}

// run does the steps. What it returns is right as far as it came.
func (s *save) run(ctx context.Context) (saved machine.Saved, err error) {
	if err := s.open(ctx); err != nil {
		return saved, err
	}
	if err := s.openPlugged(ctx); err != nil {
		return saved, err
	}
	if s.req.Final {
		_, err = s.standStill(ctx, func() error {
			if err := s.copyStill(ctx); err != nil {
				return err
			}
			saved.MemoryBytes, err = s.finish()
			return err
		})
		return saved, err
	}
	if err := s.copyRunning(ctx); err != nil {
		return saved, err
	}
	saved.Pause, err = s.standStill(ctx, func() error { return s.copyStill(ctx) })
	if err == nil {
		saved.MemoryBytes, err = s.finish()
	}
	return saved, err
}

// standStill runs f while the machine stands still, and tells who asked for the
// save before and after.
func (s *save) standStill(ctx context.Context, f func() error) (pause time.Duration, err error) {
	if s.req.Hold != nil {
		err = s.req.Hold(ctx)
	}
	if err == nil {
		pause, err = s.m.standStill(ctx, s.req.Final, f)
	}
	if s.req.Resumed != nil && (err != nil || !s.req.Final) {
		s.req.Resumed()
	}
	return pause, err
}

// open makes the files, finds the memory and begins the state.
func (s *save) open(ctx context.Context) (err error) {
	m := s.m
	if s.head, err = m.stateHead(ctx); err != nil {
		return err
	}
	f, err := create(s.req.RAMPath)
	if err != nil {
		return err
	}
	s.close = append(s.close, f)
	var base *os.File
	var src pageSource
	size := m.shape.BaseMiB << 20
	if m.template != nil {
		base = m.template.RAM
		if src, err = s.openMemory(ctx, 0, size); err != nil {
			return err
		}
	} else {
		src = fileMemory{m.ram, size}
	}
	if s.ram, err = newRAMFile(f, size, base); err != nil {
		return err
	}
	s.base = newPageCopy(src)
	if err := s.keepBase(); err != nil {
		return fmt.Errorf("base: %w", err)
	}
	if s.state, err = create(s.req.StatePath); err != nil {
		return err
	}
	s.close = append(s.close, s.state)
	s.stateCRC = crc32.New(castagnoli)
	s.out = bufio.NewWriterSize(io.MultiWriter(s.state, s.stateCRC), 256<<10)
	s.stream = newPageStream(s.out, s.head)
	if _, err = s.out.Write(s.head.start); err != nil {
		return err
	}
	return s.openDevices(ctx)
}

func (s *save) openMemory(ctx context.Context, guest uint64, size int64) (pageSource, error) {
	address, err := s.m.hostAddress(ctx, guest)
	if err != nil {
		return nil, err
	}
	mem, err := openMemory(s.m.PID(), address, size)
	if err != nil {
		return nil, err
	}
	s.close = append(s.close, mem)
	return mem, nil
}

// openPlugged finds the memory beyond the base, once there is some.
func (s *save) openPlugged(ctx context.Context) error {
	if s.plugged != nil || s.m.shape.MaxMemMiB == s.m.shape.BaseMiB {
		return nil
	}
	var size, requested int64
	var guest uint64
	device := "/machine/peripheral/" + pluggableDevice
	for _, p := range []struct {
		name string
		out  any
	}{{"size", &size}, {"requested-size", &requested}, {"memaddr", &guest}} {
		if err := s.m.monitor.Get(ctx, device, p.name, p.out); err != nil {
			return err
		}
	}
	if size == 0 && requested == 0 {
		return nil
	}
	src, err := s.openMemory(ctx, guest, (s.m.shape.MaxMemMiB-s.m.shape.BaseMiB)<<20)
	if err != nil {
		return err
	}
	s.plugged = newPageCopy(src)
	return nil
}

// Passes over the memory of a running guest end when one has found little, or
// when the guest changes it as fast as it is copied.
const (
	maxPasses   = 3
	littlePages = 2048
)

// copyRunning copies the memory while the guest changes it.
func (s *save) copyRunning(ctx context.Context) error {
	for range maxPasses {
		changed, err := s.base.pass(ctx, s.ram)
		if err != nil {
			return err
		}
		if s.plugged != nil {
			n, err := s.plugged.pass(ctx, s.stream)
			if err != nil {
				return err
			}
			changed += n
		}
		if changed < littlePages {
			break
		}
	}
	// What the host has not written of the disk, QEMU writes when it stops.
	if d := s.m.disk(); d != nil {
		return unix.Fdatasync(int(d.file.Fd()))
	}
	return nil
}

// copyStill takes what makes up the instant, while the machine stands still:
// disk, devices, and the memory that has changed since it was copied.
func (s *save) copyStill(ctx context.Context) error {
	if s.req.Disk != nil {
		if err := s.req.Disk.Cut(ctx); err != nil {
			return err
		}
	}
	if err := s.saveDevices(ctx); err != nil {
		return err
	}
	if s.m.plugs { // perhaps only since the copy began
		if err := s.openPlugged(ctx); err != nil {
			return err
		}
	}
	held := []*heldPages{{to: s.ram, limit: maxHeldBytes}, {to: s.stream, limit: maxHeldBytes}}
	if _, err := s.base.pass(ctx, held[0]); err != nil {
		return err
	}
	if s.plugged != nil {
		if _, err := s.plugged.pass(ctx, held[1]); err != nil {
			return err
		}
	}
	s.held = held
	return nil
}

// finish writes what was held back, and the sums; it returns what the memory
// takes.
func (s *save) finish() (int64, error) {
	select {
	case <-s.m.process.done: // then its number may have become another's
		return 0, s.m.process.failure()
	default:
	}
	for _, h := range s.held {
		if err := h.release(); err != nil {
			return 0, err
		}
	}
	stateBytes, err := s.finishState()
	if err != nil {
		return 0, fmt.Errorf("state: %w", err)
	}
	crc, err := s.finishRAM()
	if err != nil {
		return 0, fmt.Errorf("memory: %w", err)
	}
	stored := s.stream.bytes
	err = fileMemory{s.ram.f, s.ram.size}.runs(func(from, to int64) error {
		stored += (to - from) * pageBytes
		return nil
	})
	if err != nil {
		return 0, err
	}
	return stored, writeSums(s.req.StatePath, sums{RAMBytes: s.ram.size, RAMCRC: crc, StateBytes: stateBytes, StateCRC: s.stateCRC.Sum32()})
}

// finishState writes the rest of the state: the pages of read-only memory, the
// devices, and an empty description.
func (s *save) finishState() (int64, error) {
	if err := s.stream.finish(); err != nil {
		return 0, err
	}
	if _, err := s.out.Write(s.head.rest); err != nil {
		return 0, err
	}
	if err := s.copyDevices(); err != nil {
		return 0, err
	}
	if _, err := s.out.Write([]byte{sectionVMDesc, 0, 0, 0, 0}); err != nil {
		return 0, err
	}
	if err := s.out.Flush(); err != nil {
		return 0, err
	}
	fi, err := s.state.Stat()
	if err != nil {
		return 0, err
	}
	return fi.Size(), nil
}

// copyDevices appends what QEMU wrote: a stream of its own without a head.
func (s *save) copyDevices() error {
	fi, err := s.devices.Stat()
	if err != nil {
		return err
	}
	begin := make([]byte, len(streamMagic))
	if _, err := s.devices.ReadAt(begin, 0); err != nil || string(begin) != streamMagic || fi.Size() > maxDeviceBytes {
		return fmt.Errorf("devices: %d bytes that begin with %q, %w", fi.Size(), begin, err)
	}
	_, err = io.Copy(s.out, io.NewSectionReader(s.devices, int64(len(begin)), maxDeviceBytes))
	return err
}

// finishRAM makes the memory file whole, or a delta to the base, and returns
// its CRC.
func (s *save) finishRAM() (uint32, error) {
	if s.req.BasePath == "" {
		if err := s.ram.fill(); err != nil {
			return 0, err
		}
		return copyPages(discardAt{}, s.ram.f, s.ram.size)
	}
	if s.older != nil {
		if err := s.ram.inherit(s.older.holds); err != nil {
			return 0, err
		}
	}
	if err := s.ram.finish(s.baseCRC); err != nil {
		return 0, err
	}
	d := delta{baseCRC: s.baseCRC, holds: s.ram.holds}
	return d.crc(s.ram.f, s.ram.size)
}

// keepBase links the base and reads it: it must be what the machine was started
// with, else the delta would be one to something else.
func (s *save) keepBase() (err error) {
	if s.req.BasePath == "" {
		return nil
	}
	s.older, s.baseCRC, err = linkBase(s.req.BasePath, s.req.RAMPath, sameAs{s.ram.base}, s.ram.size)
	return err
}

// stateHead is the part of the state that comes before the devices: that of
// the template, or one made for a machine that was booted, whose read-only
// memory is only of use at a boot.
func (m *instance) stateHead(ctx context.Context) (*head, error) {
	if m.template != nil {
		state, err := reopen(m.template.State)
		if err != nil {
			return nil, err
		}
		defer state.Close()
		return readHead(state)
	}
	var class string
	if err := m.monitor.Get(ctx, "/machine", "type", &class); err != nil {
		return nil, err
	}
	blocks, err := m.monitor.RAMBlocks(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]ramBlock, len(blocks))
	for i, b := range blocks {
		list[i] = ramBlock{name: b.Name, bytes: b.UsedBytes}
	}
	return newHead(strings.TrimSuffix(class, "-machine"), list), nil
}

// maxDeviceBytes bounds the state of the devices, usually below 1 MiB.
const maxDeviceBytes = 64 << 20

// deviceSet is the descriptor set that QEMU writes its devices' state to.
const deviceSet = 4

// openDevices gives QEMU a file for the state of its devices.
func (s *save) openDevices(ctx context.Context) (err error) {
	if s.devices, err = newMemfd("devices", 0); err != nil {
		return err
	}
	s.close = append(s.close, s.devices)
	w, err := os.OpenFile(selfFD(int(s.devices.Fd())), os.O_WRONLY, 0) // QEMU wants a descriptor of just this mode
	if err != nil {
		return err
	}
	defer w.Close()
	mon := s.m.monitor
	s.close = append(s.close, closer(func() error {
		return s.m.request(context.WithoutCancel(ctx), "state of devices", func(ctx context.Context) error { return mon.RemoveFD(ctx, deviceSet) })
	}))
	return s.m.request(ctx, "state of devices", func(ctx context.Context) error { return mon.AddFD(ctx, deviceSet, w) })
}

// saveDevices makes QEMU write the state of its devices. The command is named
// after Xen, which it was made for, but does nothing special for it.
func (s *save) saveDevices(ctx context.Context) error {
	return s.m.request(ctx, "state of devices", func(ctx context.Context) error {
		return s.m.monitor.SaveDevices(ctx, fdset(deviceSet))
	})
}

type closer func() error

func (c closer) Close() error { return c() }

// standStill runs f while the virtual processors stand still and returns for
// how long they did. Afterwards the machine is as before, unless it is to stay
// and f succeeded.
func (m *instance) standStill(ctx context.Context, stay bool, f func() error) (_ time.Duration, err error) {
	if err := m.still.lock(ctx); err != nil {
		return 0, err
	}
	defer m.still.unlock()
	status, err := m.notStalled(ctx)
	if err != nil {
		return 0, err
	}
	if status != "running" {
		return 0, f()
	}
	begin := time.Now()
	err = m.request(ctx, "pause", m.monitor.Stop)
	if err == nil && stay {
		// One that has stalled just before would be let go on later.
		_, err = m.notStalled(ctx)
	}
	if err == nil {
		err = f()
	}
	if stay && err == nil {
		return 0, nil
	}
	resumed := m.request(context.WithoutCancel(ctx), "resume", m.monitor.Cont)
	return time.Since(begin), errors.Join(err, resumed)
}

// notStalled returns QEMU's status, or CodeExhausted for a machine that is
// stalled: it goes on by itself as soon as there is room.
func (m *instance) notStalled(ctx context.Context) (status string, err error) {
	err = m.request(ctx, "status", func(ctx context.Context) (err error) {
		status, err = m.monitor.Status(ctx)
		return err
	})
	if err == nil && status == statusStalled {
		err = skerry.Errorf(skerry.CodeExhausted, "the machine stands still because the host's disk is full")
	}
	return status, err
}

// semaphore is a mutex whose lock can be given up.
type semaphore chan struct{}

func newSemaphore() semaphore { return make(semaphore, 1) }

func (s semaphore) lock(ctx context.Context) error {
	select {
	case s <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s semaphore) unlock() { <-s }

// writeSums finishes a template.
func writeSums(statePath string, s sums) error {
	s.Version = sumsVersion
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	// No fsync(2): what a power cut loses of a template, the sums find.
	return os.WriteFile(sumsPath(statePath), b, 0o600)
}
