package runner

import (
	"context"
	"os"
	"path/filepath"
	"sync"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/machine/qemu"
	"skerry.dev/skerry/internal/shim"
)

// zygotes keeps machines that others are forked from: one for each of the
// templates used last, made by the loop that fills the ready pool. A fork has
// all code translated that a create and a first command need. Without one, as
// after a start, machines are restored from the template.
type zygotes struct {
	r    *Runner
	size int

	mu     sync.Mutex
	ready  []*zygote            // the one used last is the last; guarded by mu
	failed map[TemplateKey]bool // of which none could be made; guarded by mu
	want   *plan                // the last that was asked for, or nil; guarded by mu
	making string               // image of the one that is being made, or ""; guarded by mu
}

// zygote is one of them.
type zygote struct {
	id   skerry.MachineID
	key  TemplateKey
	proc *shim.Process
	// users are the machines that are being forked from it; it ends after them.
	users sync.WaitGroup
}

// origin is a zygote that is in use.
type origin struct {
	conn    *os.File // to fork a machine over
	scratch string   // the disk of which each needs a copy
	release func()
}

func newZygotes(r *Runner, size int) *zygotes {
	return &zygotes{r: r, size: size, failed: map[TemplateKey]bool{}}
}

// take returns a zygote of the template key, or nil. release must be called
// when the connection is handed over and the disk is copied.
func (z *zygotes) take(ctx context.Context, key TemplateKey) *origin {
	z.mu.Lock()
	i := z.indexLocked(key)
	if i < 0 {
		z.mu.Unlock()
		return nil
	}
	g := z.ready[i]
	z.ready = append(append(z.ready[:i:i], z.ready[i+1:]...), g)
	g.users.Add(1)
	z.mu.Unlock()
	conn, err := shim.DialOrigin(ctx, g.proc.Dir)
	if err != nil {
		g.users.Done()
		z.r.log.Warn("a zygote does not answer", "machine_id", g.id, "err", err)
		z.drop(ctx, func(o *zygote) bool { return o == g })
		return nil
	}
	return &origin{conn: conn, scratch: filepath.Join(g.proc.Dir, shim.ScratchFile), release: func() {
		conn.Close()
		g.users.Done()
	}}
}

func (z *zygotes) indexLocked(key TemplateKey) int {
	for i, g := range z.ready {
		if g.key == key {
			return i
		}
	}
	return -1
}

// keep asks for a zygote for creates of a plan, the last that was asked for.
func (z *zygotes) keep(p plan) {
	if z.size == 0 || p.key.Bare || z.r.cfg.ColdBoot || !qemu.CanFork(p.prep.Driver.Accel) {
		return
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	z.want = &p
}

// missing is what a zygote is to be made for, or nil.
func (z *zygotes) missing() *plan {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.want == nil || z.failed[z.want.key] || z.indexLocked(z.want.key) >= 0 {
		return nil
	}
	return z.want
}

// add makes a zygote, in the place of the one that was unused for longest if
// there are too many. If it cannot be made it is not wanted again.
func (z *zygotes) add(ctx context.Context, p plan) error {
	z.mu.Lock()
	z.making = p.key.Image
	z.mu.Unlock()
	proc, err := z.r.startAside(ctx, p, frozen, shim.PhaseFrozen)
	z.mu.Lock()
	gone := z.making == ""
	z.making = ""
	if gone { // the image was deleted meanwhile
		z.mu.Unlock()
		if err == nil {
			z.r.dropMachine(ctx, proc.id)
		}
		return nil
	}
	if err != nil {
		z.failed[p.key] = ctx.Err() == nil
		z.mu.Unlock()
		return err
	}
	g := &zygote{id: proc.id, key: p.key, proc: proc.Process}
	z.ready = append(z.ready, g)
	var oldest *zygote
	if len(z.ready) > z.size {
		oldest = z.ready[0]
	}
	z.mu.Unlock()
	z.drop(ctx, func(o *zygote) bool { return o == oldest })
	z.r.work.Go(func() { z.watch(g) })
	return nil
}

// watch drops a zygote that has failed.
func (z *zygotes) watch(g *zygote) {
	st, err := g.proc.Client.WaitChange(z.r.life, shim.PhaseFrozen)
	if z.r.life.Err() != nil {
		return
	}
	z.drop(z.r.life, func(o *zygote) bool {
		if o == g {
			z.r.log.Warn("a zygote has failed", "machine_id", g.id, "reason", st.Error, "err", err)
		}
		return o == g
	})
}

// dropImage ends the zygotes of an image that is deleted.
func (z *zygotes) dropImage(ctx context.Context, digest string) {
	z.mu.Lock()
	if z.making == digest {
		z.making = ""
	}
	if z.want != nil && z.want.key.Image == digest {
		z.want = nil
	}
	z.mu.Unlock()
	z.drop(ctx, func(g *zygote) bool { return g.key.Image == digest })
}

// drop ends the zygotes that are gone, when nobody uses them any more. What was
// forked from them lives on.
func (z *zygotes) drop(ctx context.Context, gone func(*zygote) bool) {
	z.mu.Lock()
	var keep, drop []*zygote
	for _, g := range z.ready {
		if gone(g) {
			drop = append(drop, g)
		} else {
			keep = append(keep, g)
		}
	}
	z.ready = keep
	z.mu.Unlock()
	for _, g := range drop {
		g.users.Wait()
		z.r.dropMachine(ctx, g.id)
	}
}

// close ends all.
func (z *zygotes) close() {
	z.drop(context.Background(), func(*zygote) bool { return true })
}
