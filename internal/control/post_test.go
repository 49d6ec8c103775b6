package control

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
)

// post is a message server by hand: it keeps what both sides send, until the
// test delivers it. As the bus does, it delivers at least once, events in their
// order, commands in any, and keeps one command of a kind for an object.
type post struct {
	w      *world
	runner *fakeRunner
	orders []order
	events []bus.Event
	cutOff bool // what is published arrives, but whoever did so is told otherwise
}

// order is a job or a command.
type order struct {
	subject string
	job     *bus.CreateJob
	command *bus.Command
}

func (p *post) add(o order) error {
	p.orders = append(slices.DeleteFunc(p.orders, func(q order) bool { return q.subject == o.subject }), o)
	if p.cutOff {
		return errCrash
	}
	return nil
}

func (p *post) PublishJob(_ context.Context, j bus.CreateJob) error {
	return p.add(order{"job " + string(j.SandboxID), &j, nil})
}

func (p *post) PublishCommand(_ context.Context, _ skerry.RunnerID, _ string, c bus.Command) error {
	object := string(c.MachineID)
	if object == "" {
		object = string(c.SandboxID) + string(c.ImageID) + string(c.SnapshotID)
	}
	return p.add(order{c.Kind + " " + object, nil, &c})
}

func (p *post) PublishEvent(_ context.Context, e bus.Event) error {
	p.events = append(p.events, e)
	return nil
}

func (p *post) Claim(ctx context.Context, r bus.ClaimRequest) (bus.ClaimReply, error) {
	return p.w.claim(ctx, r)
}

func (p *post) ServeClaims(context.Context, func(context.Context, bus.ClaimRequest) (bus.ClaimReply, error)) error {
	panic("control does not run")
}

func (p *post) ConsumeEvents(context.Context, func(context.Context, bus.Event) error) error {
	panic("control does not run")
}

func (p *post) ConsumeHeartbeats(context.Context, func(context.Context, bus.Heartbeat) error) error {
	panic("control does not run")
}

func (p *post) ConsumeJobs(context.Context, string, string, int, func(context.Context, bus.CreateJob) error) error {
	panic("runner does not run")
}

func (p *post) ConsumeCommands(context.Context, skerry.RunnerID, func(context.Context, bus.Command) error) error {
	panic("runner does not run")
}

// byHand gives the world a post and a runner whose messages the test delivers.
func (w *world) byHand() *post {
	w.t.Helper()
	p := &post{w: w, runner: &fakeRunner{dir: filepath.Join(w.dir, "host"), epoch: 2}}
	p.runner.bus = p
	must(w.t, p.runner.init())
	images, err := w.ListImages(w.t.Context())
	must(w.t, err)
	for _, i := range images {
		must(w.t, p.runner.image(w.t.Context(), i.ID))
	}
	p.restartControl()
	p.restartRunner()
	p.drain()
	return p
}

// restartControl ends the control plane as a kill does, and starts it again.
func (p *post) restartControl() {
	p.w.t.Helper()
	must(p.w.t, p.w.db.Close())
	p.w.open()
	cfg := p.w.Control.cfg
	cfg.Bus, cfg.Logger = p, slog.New(slog.DiscardHandler)
	p.w.Control = New(cfg)
	must(p.w.t, p.w.recover(p.w.t.Context()))
}

// restartRunner starts the runner once more, which reports first.
func (p *post) restartRunner() {
	p.w.t.Helper()
	next := &fakeRunner{bus: p, dir: p.runner.dir, epoch: p.runner.epoch + 1, skip: p.runner.skip, fault: p.runner.fault, use: p.runner.use, twice: p.runner.twice}
	p.runner = next
	must(p.w.t, next.adopt())
	must(p.w.t, next.report(p.w.t.Context()))
}

// publish has control hand over what is in its outbox.
func (p *post) publish() {
	p.w.t.Helper()
	for more := true; more; {
		var err error
		more, err = p.w.flushOutbox(p.w.t.Context())
		must(p.w.t, err)
	}
}

// deliverOrder delivers one of the orders; after an error it stays.
func (p *post) deliverOrder(i int) error {
	o := p.orders[i]
	var err error
	if o.job != nil {
		err = p.runner.create(p.w.t.Context(), *o.job)
	} else {
		err = p.runner.command(p.w.t.Context(), *o.command)
	}
	if err == nil {
		p.orders = append(p.orders[:i:i], p.orders[i+1:]...)
	}
	return err
}

// deliverEvent delivers the next event; it stays to be delivered again if its
// acknowledgement is lost.
func (p *post) deliverEvent(acknowledged bool) {
	p.w.t.Helper()
	must(p.w.t, p.w.event(p.w.t.Context(), p.events[0]))
	if acknowledged {
		p.events = p.events[1:]
	}
}

// step delivers something at random, and returns false if nothing is left.
func (p *post) step(random *rand.Rand) (left bool, err error) {
	p.w.t.Helper()
	p.publish()
	n := len(p.orders) + min(1, len(p.events))
	if n == 0 {
		return false, nil
	}
	if i := random.IntN(n); i < len(p.orders) {
		return true, p.deliverOrder(i)
	}
	p.deliverEvent(random.IntN(8) != 0)
	return true, nil
}

// drain delivers everything there is.
func (p *post) drain() {
	p.w.t.Helper()
	random := rand.New(rand.NewPCG(1, 1))
	for left, n := true, 0; left; n++ {
		var err error
		left, err = p.step(random)
		must(p.w.t, err)
		if n > 10000 {
			p.w.t.Fatalf("does not come to rest: orders %+v, events %+v", p.orders, p.events)
		}
	}
}
