package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/guestapi"
	"skerry.dev/skerry/internal/machine"
)

// A standstill asked of the guest is bounded by these: the first for its
// processes and disk to stop, the second after which the agent lets writes go
// on by itself, should this process not come to it.
const (
	freezeTimeout = 20 * time.Second
	diskFrozen    = 10 * time.Second
)

// save writes memory and device state of the running sandbox, and its disk at
// the same instant if that is asked for. The user's processes are frozen inside
// what is saved, so that in a copy none runs before it has been renewed.
func (s *shim) save(ctx context.Context, req SaveRequest) (SaveReply, error) {
	s.saving.Lock()
	defer s.saving.Unlock()
	ctx, cancel := s.unlessFull(ctx)
	defer cancel()
	link, err := s.runningLink()
	if err != nil {
		return SaveReply{}, err
	}
	out := machine.SaveRequest{StatePath: filepath.Join(req.Dir, StateFile), RAMPath: filepath.Join(req.Dir, RAMFile),
		BasePath: s.baseRAM(), Final: req.Final}
	if req.Disk {
		disk, err := s.beginCopy(ctx, filepath.Join(req.Dir, ScratchFile))
		if err != nil {
			return SaveReply{}, err
		}
		defer disk.Close()
		out.Disk = disk
	}
	var begin time.Time
	var still time.Duration
	var thawErr error
	out.Hold = func(ctx context.Context) error {
		begin = time.Now()
		return freeze(ctx, link, guestapi.Freeze{Processes: true})
	}
	out.Resumed = func() {
		// The guest's clock stood still with it.
		thawErr = s.renewSaved(ctx)
		still = time.Since(begin)
		if thawErr != nil && !errors.Is(thawErr, errFull) {
			s.fail(thawErr) // a sandbox that stands still for good is none
		}
	}
	saved, err := s.machine.Save(ctx, out)
	if err == nil && req.Disk {
		err = out.Disk.Wait(ctx)
	}
	if err = errors.Join(err, thawErr); err != nil {
		return SaveReply{}, fmt.Errorf("save: %w", err)
	}
	if req.Final && !s.setPhase(PhaseSaved, nil) {
		st, _ := s.snapshot()
		return SaveReply{}, errNotReady(st)
	}
	return SaveReply{StillMicros: still.Microseconds(), MemoryBytes: saved.MemoryBytes}, nil
}

// baseRAM is the file of the memory that the machine was restored from, or ""
// for one that was booted.
func (s *shim) baseRAM() string {
	path := filepath.Join(s.cfg.Dir, BaseFile)
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

// resumeSaved takes a final save back.
func (s *shim) resumeSaved(ctx context.Context) error {
	s.saving.Lock()
	defer s.saving.Unlock()
	st, _ := s.snapshot()
	if st.Phase != PhaseSaved {
		return errNotReady(st)
	}
	if err := s.machine.Resume(ctx); err != nil {
		return err
	}
	// As long as it stood still its clock did.
	next, err := PhaseRunning, s.renewSaved(ctx)
	if errors.Is(err, errFull) {
		next, err = PhaseFull, nil
	}
	if err != nil {
		return err
	}
	if !s.setPhase(next, nil) {
		st, _ := s.snapshot()
		return errNotReady(st)
	}
	return nil
}

// copyDisk copies the writable disk. Writes stand still from the guest's freeze
// until the instant of the copy is fixed.
func (s *shim) copyDisk(ctx context.Context, req CopyDiskRequest) (CopyDiskReply, error) {
	s.saving.Lock()
	defer s.saving.Unlock()
	ctx, cancel := s.unlessFull(ctx)
	defer cancel()
	link, err := s.runningLink()
	if err != nil {
		return CopyDiskReply{}, err
	}
	disk, err := s.beginCopy(ctx, req.Path)
	if err != nil {
		return CopyDiskReply{}, err
	}
	defer disk.Close()
	begin := time.Now()
	err = freeze(ctx, link, guestapi.Freeze{Disk: true, DiskMillis: diskFrozen.Milliseconds()})
	if err == nil {
		err = disk.Cut(ctx)
		if late := time.Since(begin); err == nil && late > diskFrozen {
			err = skerry.Errorf(skerry.CodeTimeout, "the disk was copied %v after it was frozen, writes went on after %v", late, diskFrozen)
		}
	}
	err = errors.Join(err, s.thaw(ctx, link))
	frozen := time.Since(begin)
	if err == nil {
		err = disk.Wait(ctx)
	}
	if err != nil {
		return CopyDiskReply{}, fmt.Errorf("copy disk: %w", err)
	}
	return CopyDiskReply{FrozenMicros: frozen.Microseconds()}, nil
}

// beginCopy begins a copy of the writable disk to a new file.
func (s *shim) beginCopy(ctx context.Context, path string) (machine.DiskCopy, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("copy disk: %w", err)
	}
	disk, err := s.machine.CopyScratch(ctx, f)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("copy disk: %w", err), f.Close(), os.Remove(path))
	}
	return diskCopy{disk, f}, nil
}

// diskCopy is a copy that has its file to close.
type diskCopy struct {
	machine.DiskCopy
	file *os.File
}

func (c diskCopy) Close() error { return errors.Join(c.DiskCopy.Close(), c.file.Close()) }

func freeze(ctx context.Context, link *guestapi.Link, in guestapi.Freeze) error {
	ctx, cancel := context.WithTimeout(ctx, freezeTimeout)
	defer cancel()
	if err := link.Control(ctx, guestapi.PathFreeze, in, nil); err != nil {
		return fmt.Errorf("freeze: %w", err)
	}
	return nil
}

// thaw undoes a freeze, also when the caller has gone. In a machine that stands
// still for want of room it is undone when that goes on.
func (s *shim) thaw(ctx context.Context, link *guestapi.Link) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), freezeTimeout)
	defer cancel()
	ctx, done := s.unlessFull(ctx)
	defer done()
	if err := orFull(ctx, link.Control(ctx, guestapi.PathThaw, nil, nil)); err != nil {
		err = fmt.Errorf("thaw: %w", err)
		if !errors.Is(err, errFull) {
			s.fail(err) // a sandbox that stands still for good is none
		}
		return err
	}
	return nil
}
