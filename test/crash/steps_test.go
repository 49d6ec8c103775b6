package crash

import (
	"slices"
	"testing"

	"skerry.dev/skerry"
)

// TestServerKilledInOperation kills the server at every step of stop, pause,
// start and resume, and its successor at the same step if it comes there. The
// operation is then finished or taken back, no flushed file is lost, memory only
// with the machine, and the sandbox does everything again.
func TestServerKilledInOperation(t *testing.T) {
	w := newWorld(t)
	w.start(quiet)
	k := w.keep("keeper")
	running, stopped, paused := skerry.StatusRunning, skerry.StatusStopped, skerry.StatusPaused
	for _, tt := range []struct {
		action skerry.Action
		from   skerry.Status
		step   string
		want   []skerry.Status
	}{
		{skerry.Stop, running, "stop.shut_down", []skerry.Status{stopped}},
		{skerry.Stop, running, "keep.recorded", []skerry.Status{stopped}},
		{skerry.Stop, running, "delete.killed", []skerry.Status{stopped}},
		{skerry.Pause, running, "pause.saved", []skerry.Status{paused}},
		{skerry.Pause, running, "keep.recorded", []skerry.Status{paused}},
		{skerry.Pause, running, "delete.killed", []skerry.Status{paused}},
		{skerry.Start, stopped, "start.directory", []skerry.Status{running}},
		{skerry.Start, stopped, "start.started", []skerry.Status{running}},
		{skerry.Start, stopped, "start.recorded", []skerry.Status{running, stopped}},
		{skerry.Start, stopped, "start.activated", []skerry.Status{running}},
		{skerry.Resume, paused, "start.directory", []skerry.Status{running}},
		{skerry.Resume, paused, "start.started", []skerry.Status{running}},
		{skerry.Resume, paused, "start.recorded", []skerry.Status{running, paused}},
		{skerry.Resume, paused, "start.activated", []skerry.Status{running}},
	} {
		t.Run(string(tt.action)+"/"+tt.step, func(t *testing.T) {
			w := w.with(t)
			w.bring(k, tt.from)
			w.crashTwice(tt.step, func() error { return w.ask(k, tt.action) })
			sb := w.rest(k.id)
			t.Logf("after the restart: %s, %q", sb.Status, sb.Reason)
			if !slices.Contains(tt.want, sb.Status) {
				t.Fatalf("%s (%s), want one of %s; end of the log:\n%s", sb.Status, sb.Reason, tt.want, w.server.LogTail(20))
			}
			switch {
			case sb.Status == stopped && tt.action == skerry.Stop:
				k.memory = nil
				if sb.Reason != "" {
					t.Errorf("it was stopped in order, but has the reason %q", sb.Reason)
				}
			case sb.Status == tt.from && sb.Reason == "":
				t.Error("was taken back without a reason")
			}
			w.bring(k, running)
			w.wantFiles(k)
			w.wantNothingHalf(k)
			w.wantOnly(w.rest(k.id))
		})
	}
	w.works(k)
}

// TestServerKilledInCopy kills the server at the step of a snapshot, a fork and
// a capture at which the copy is made and nobody knows of it. The source runs
// on; the copy is finished, or has failed and says why.
func TestServerKilledInCopy(t *testing.T) {
	w := newWorld(t)
	w.start(quiet)
	k := w.keep("source")
	t.Run("snapshot", func(t *testing.T) {
		w := w.with(t)
		w.crashTwice("snapshot.saved", func() error {
			_, err := w.server.Client.CreateSnapshot(t.Context(), string(k.id), "snap")
			return err
		})
		w.wantFree(k)
		got, err := w.server.Client.WaitSnapshot(t.Context(), "snap", patience)
		t.Logf("after the restart: %s, %v", got.Status, err)
		if err == nil {
			sb, err := w.server.Client.RestoreSnapshot(t.Context(), "snap", skerry.RestoreRequest{})
			w.must(err)
			w.wantCopy(k.copyOf(sb.ID, true))
		} else if got.Error == "" {
			t.Errorf("snapshot is %s without an error: %v", got.Status, err)
		}
		w.must(w.deleteSnapshots(t.Context()))
		w.wantNothingHalf(k)
	})
	t.Run("fork", func(t *testing.T) {
		w := w.with(t)
		names := []string{"child1", "child2"}
		w.crashTwice("fork.saved", func() error {
			_, err := w.server.Client.ForkSandbox(t.Context(), string(k.id), skerry.ForkRequest{Names: names})
			return err
		})
		w.wantFree(k)
		for _, name := range names {
			w.wantCopy(k.copyOf(w.named(name), true))
		}
		w.wantNothingHalf(k)
	})
	t.Run("capture", func(t *testing.T) {
		w := w.with(t)
		w.crashTwice("capture.copied", func() error {
			_, err := w.server.Client.CaptureImage(t.Context(), string(k.id), skerry.CaptureRequest{Name: "captured"})
			return err
		})
		w.wantFree(k)
		got, err := w.server.Client.WaitImage(t.Context(), "captured", patience, nil)
		t.Logf("after the restart: %s, %v", got.Status, err)
		if err == nil {
			req := persistent("of-image")
			req.Image = "captured"
			sb, err := w.server.Client.CreateSandbox(t.Context(), req)
			w.must(err)
			w.wantCopy(k.copyOf(sb.ID, false))
		} else if got.Error == "" {
			t.Errorf("image is %s without an error: %v", got.Status, err)
		}
		w.must(w.server.Client.DeleteImage(t.Context(), "captured"))
		w.wantNothingHalf(k)
	})
	w.works(k)
}

// wantFree waits until the source of a copy is free; it must run, with its files.
func (w *world) wantFree(k *keeper) {
	w.t.Helper()
	if sb := w.rest(k.id); sb.Status != skerry.StatusRunning {
		w.t.Fatalf("the source is %s (%s); end of the log:\n%s", sb.Status, sb.Reason, w.server.LogTail(20))
	}
	w.wantFiles(k)
}

// wantCopy waits for the end of a create. The sandbox must run, with its files,
// or have failed with a reason; it is deleted then.
func (w *world) wantCopy(k *keeper) {
	w.t.Helper()
	sb := w.rest(k.id)
	w.t.Logf("the copy is %s, %q", sb.Status, sb.Reason)
	switch {
	case sb.Status == skerry.StatusRunning:
		w.wantFiles(k)
	case sb.Status != skerry.StatusFailed || sb.Reason == "":
		w.t.Errorf("the copy is %s, reason %q; end of the log:\n%s", sb.Status, sb.Reason, w.server.LogTail(20))
	}
	w.must(w.server.Delete(w.t.Context(), k.id))
}

// TestServerKilledInCreate kills the server at every step of the create of a
// persistent sandbox, of a restore, and of a fork's child. The first two are made
// after the restart. TestServerKilled does so for ephemeral ones.
func TestServerKilledInCreate(t *testing.T) {
	w := newWorld(t)
	w.start(quiet)
	k := w.keep("source")
	snap, err := w.server.Client.CreateSnapshot(t.Context(), string(k.id), "snap")
	w.must(err)
	_, err = w.server.Client.WaitSnapshot(t.Context(), string(snap.ID), patience)
	w.must(err)
	for _, step := range []string{"create.reserved", "create.claimed", "create.directory", "create.started", "create.activated"} {
		for kind, begin := range map[string]func(w *world) error{
			"persistent": func(w *world) error {
				_, err := w.server.Client.CreateSandbox(t.Context(), persistent("made"))
				return err
			},
			"restore": func(w *world) error {
				_, err := w.server.Client.RestoreSnapshot(t.Context(), "snap", skerry.RestoreRequest{Name: "made"})
				return err
			},
			"fork": func(w *world) error {
				_, err := w.server.Client.ForkSandbox(t.Context(), string(k.id), skerry.ForkRequest{Names: []string{"made"}})
				return err
			},
		} {
			t.Run(kind+"/"+step, func(t *testing.T) {
				w := w.with(t)
				w.crashTwice(step, func() error { return begin(w) })
				made := &keeper{id: w.named("made")}
				if kind != "persistent" {
					made = k.copyOf(made.id, true)
				}
				if sb := w.rest(made.id); kind != "fork" && sb.Status != skerry.StatusRunning {
					t.Errorf("%s (%s), want running; end of the log:\n%s", sb.Status, sb.Reason, w.server.LogTail(20))
				}
				w.wantCopy(made)
				w.wantFree(k)
				w.wantNothingHalf(k)
				w.wantOnly(w.rest(k.id))
			})
		}
	}
}

// named is the id of the sandbox with this name.
func (w *world) named(name string) skerry.SandboxID {
	w.t.Helper()
	sb, err := w.server.Client.Sandbox(w.t.Context(), name)
	w.must(err)
	return sb.ID
}
