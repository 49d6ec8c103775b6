package runner

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/shim"
)

// poolQuiet is how long no create must have been under way before the pool is
// refilled, so that a burst of creates has the processors for itself.
const poolQuiet = 300 * time.Millisecond

// pool keeps machines that are restored, have run until their agent answered,
// and are paused. They are of the templates used last.
type pool struct {
	r    *Runner
	size int

	mu    sync.Mutex
	ready []*pooled // oldest first; guarded by mu
	want  *plan     // what the next member is made for; guarded by mu
	busy  int       // creates under way; guarded by mu
	wake  chan struct{}
}

// pooled is a machine of the pool.
type pooled struct {
	id   skerry.MachineID
	key  TemplateKey
	proc *shim.Process
}

func newPool(r *Runner, size int) *pool {
	return &pool{r: r, size: size, wake: make(chan struct{}, 1)}
}

// take removes a machine of the template key from the pool, or returns nil.
func (p *pool) take(key TemplateKey) *pooled {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, m := range p.ready {
		if m.key == key {
			p.ready = append(p.ready[:i:i], p.ready[i+1:]...)
			return m
		}
	}
	return nil
}

// giveBack returns a machine that was not used; nil is ignored.
func (p *pool) giveBack(m *pooled) {
	if m == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready = append(p.ready, m)
}

func (p *pool) len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.ready)
}

// begin notes a create; the function it returns ends it and, if it went well,
// makes its template the one to keep ready.
func (p *pool) begin() (end func(pl plan, ok bool)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy++
	return func(pl plan, ok bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.busy--
		if ok && (p.want == nil || p.want.key != pl.key) {
			p.want = &pl
			if err := p.remember(pl); err != nil {
				p.r.log.Warn("remember what the ready pool is for", "err", err)
			}
		}
		p.wakeUp()
	}
}

// poolWish is what the pool was filled with last, kept so that a new server
// begins with that.
type poolWish struct {
	Digest    string           `json:"digest"`
	Resources skerry.Resources `json:"resources"`
}

func (p *pool) wishPath() string { return filepath.Join(p.r.cfg.Dir, "ready-pool.json") }

func (p *pool) remember(pl plan) error {
	b, err := json.Marshal(poolWish{pl.img.digest, pl.res})
	if err != nil {
		return err
	}
	return replaceFile(p.wishPath(), b)
}

// recall asks for the machines that were wanted last. What cannot be had any
// more is forgotten.
func (p *pool) recall(ctx context.Context) {
	var wish poolWish
	b, err := os.ReadFile(p.wishPath())
	if err != nil || json.Unmarshal(b, &wish) != nil {
		return
	}
	if pl, err := p.r.plan(ctx, wish.Digest, wish.Resources, ephemeral); err == nil {
		p.keep(pl)
	}
}

// keep asks for machines of a plan if no create has asked for others.
func (p *pool) keep(pl plan) {
	p.r.zygotes.keep(pl)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.want == nil {
		p.want = &pl
		p.wakeUp()
	}
}

func (p *pool) wakeUp() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// run refills the pool until ctx ends, and makes the zygote its machines come
// from first.
func (p *pool) run(ctx context.Context) error {
	p.recall(ctx)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.wake:
		}
		for p.quiet(ctx) {
			if pl := p.r.zygotes.missing(); pl != nil {
				if err := p.r.zygotes.add(ctx, *pl); err != nil && ctx.Err() == nil {
					p.r.log.Warn("make zygote", "err", err)
				}
				continue
			}
			pl, old := p.next()
			p.drop(ctx, old)
			if pl == nil {
				break
			}
			if err := p.add(ctx, *pl); err != nil {
				p.r.log.Warn("refill ready pool", "err", err)
				break
			}
		}
	}
}

// quiet waits until no create is under way and reports whether to go on.
func (p *pool) quiet(ctx context.Context) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(poolQuiet):
		}
		p.mu.Lock()
		busy := p.busy
		p.mu.Unlock()
		if busy == 0 {
			return true
		}
	}
}

// next says what to add, nil when the pool is full of what is wanted, and which
// machine of another template has to make room.
func (p *pool) next() (add *plan, old *pooled) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.want == nil {
		return nil, nil
	}
	have, other := 0, -1
	for i, m := range p.ready {
		if m.key == p.want.key {
			have++
		} else if other < 0 {
			other = i
		}
	}
	if have >= p.size {
		return nil, nil
	}
	if len(p.ready) >= p.size && other >= 0 {
		old = p.ready[other]
		p.ready = append(p.ready[:other:other], p.ready[other+1:]...)
	}
	return p.want, old
}

// dropImage ends the machines of an image that is deleted.
func (p *pool) dropImage(ctx context.Context, digest string) {
	p.mu.Lock()
	var keep, gone []*pooled
	for _, m := range p.ready {
		if m.key.Image == digest {
			gone = append(gone, m)
		} else {
			keep = append(keep, m)
		}
	}
	p.ready = keep
	if p.want != nil && p.want.key.Image == digest {
		p.want = nil
	}
	p.mu.Unlock()
	for _, m := range gone {
		p.drop(ctx, m)
	}
}

// drop ends a machine that is out of the list.
func (p *pool) drop(ctx context.Context, m *pooled) {
	if m != nil {
		p.r.dropMachine(ctx, m.id)
	}
}

func (p *pool) add(ctx context.Context, pl plan) error {
	a, err := p.r.startAside(ctx, pl, warmed, shim.PhaseReady)
	if err != nil {
		return err
	}
	p.giveBack(&pooled{id: a.id, key: pl.key, proc: a.Process})
	return nil
}

// close ends all members.
func (p *pool) close() {
	p.mu.Lock()
	ready := p.ready
	p.ready = nil
	p.mu.Unlock()
	for _, m := range ready {
		p.drop(context.Background(), m)
	}
}
