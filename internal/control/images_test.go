package control

import (
	"strings"
	"testing"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
)

func (w *world) imageEvents(i skerry.Image, reports ...bus.ImageReport) {
	w.t.Helper()
	for _, r := range reports {
		r.ImageID = i.ID
		must(w.t, w.event(w.t.Context(), bus.Event{Kind: bus.EventImage, RunnerID: runnerA, Image: &r}))
	}
}

func (w *world) wantImage(id skerry.ImageID, want skerry.ImageStatus) skerry.Image {
	w.t.Helper()
	i, err := w.Image(w.t.Context(), string(id))
	must(w.t, err)
	if i.Status != want {
		w.t.Errorf("image %s is %s (%s), want %s", i.Name, i.Status, i.Error, want)
	}
	return i
}

func TestImageLife(t *testing.T) {
	w := newWorld(t)
	w.takeOutbox()
	i, err := w.PullImage(t.Context(), skerry.PullRequest{Reference: "docker.io/library/alpine:3.20", Name: "alpine", Auth: &skerry.RegistryAuth{Password: "secret"}})
	must(t, err)
	if i.Status != skerry.ImagePending || i.Name != "alpine" || i.Source != "docker.io/library/alpine:3.20" || i.Default {
		t.Errorf("pulled %+v", i)
	}
	if commands := w.takeOutbox(); len(commands) != 1 || !strings.Contains(commands[0], string(i.ID)) || !strings.Contains(commands[0], "secret") {
		t.Errorf("commands %q", commands)
	}
	w.imageEvents(i, bus.ImageReport{Status: skerry.ImageBuilding, Progress: &skerry.PullProgress{Phase: "downloading", DoneBytes: 1}},
		bus.ImageReport{Status: skerry.ImageBuilding, Progress: &skerry.PullProgress{Phase: "downloading", DoneBytes: 2}})
	if got := w.wantImage(i.ID, skerry.ImageBuilding); got.Progress.DoneBytes != 2 {
		t.Errorf("progress %+v", got.Progress)
	}
	ready := bus.ImageReport{Status: skerry.ImageReady, Digest: "sha256:2", Platform: "linux/amd64", Bytes: 5, LayerCount: 1, Config: skerry.ImageConfig{Cmd: []string{"sh"}}}
	w.imageEvents(i, ready)
	got := w.wantImage(i.ID, skerry.ImageReady)
	if got.Progress != nil || got.Digest != "sha256:2" || got.Bytes != 5 || got.LayerCount != 1 || got.Config.Cmd[0] != "sh" || got.Default {
		t.Errorf("ready %+v", got)
	}
	// What is settled stays so, and another runner has no say.
	w.imageEvents(i, bus.ImageReport{Status: skerry.ImageFailed}, bus.ImageReport{Status: skerry.ImageBuilding}, bus.ImageReport{Status: "nonsense"})
	must(t, w.event(t.Context(), bus.Event{Kind: bus.EventImage, RunnerID: runnerB, Image: &bus.ImageReport{ImageID: i.ID, Deleted: true}}))
	w.wantImage(i.ID, skerry.ImageReady)
	if i, err := w.Image(t.Context(), "debian"); err != nil || !i.Default {
		t.Errorf("the default image changed: %+v, %v", i, err)
	}
	w.imageEvents(i, bus.ImageReport{Deleted: true})
	w.wantImage(i.ID, skerry.ImageFailed)
}

func TestImageNames(t *testing.T) {
	w := newWorld(t)
	for _, req := range []skerry.PullRequest{{}, {Reference: "a b"}, {Reference: "img_x"}, {Reference: "ok", Name: "snap-1"}} {
		_, err := w.PullImage(t.Context(), req)
		wantCode(t, "pull "+req.Reference+" as "+req.Name, err, skerry.CodeInvalid)
	}
	_, err := w.ImportImage(t.Context(), skerry.ImportRequest{Path: "/x"})
	wantCode(t, "import without a name", err, skerry.CodeInvalid)
	_, err = w.PullImage(t.Context(), skerry.PullRequest{Reference: "large", Auth: &skerry.RegistryAuth{Password: strings.Repeat("x", maxCommandBytes)}})
	wantCode(t, "too large", err, skerry.CodeTooLarge)
	_, err = w.PullImage(t.Context(), skerry.PullRequest{Reference: "other", Name: "debian"})
	wantCode(t, "a name in use", err, skerry.CodeConflict)

	// A failed image gives its name free.
	failed, err := w.ImportImage(t.Context(), skerry.ImportRequest{Path: "/x", Name: "n", Kind: skerry.ArchiveOCI})
	must(t, err)
	w.imageEvents(failed, bus.ImageReport{Status: skerry.ImageFailed, Error: "no manifest"})
	w.takeOutbox()
	again, err := w.ImportImage(t.Context(), skerry.ImportRequest{Path: "/y", Name: "n"})
	if err != nil || again.ID == failed.ID {
		t.Fatalf("import again: %s, %v", again.ID, err)
	}
	if commands := w.takeOutbox(); len(commands) != 2 || !strings.Contains(commands[0], `"image.delete","image_id":"`+string(failed.ID)) {
		t.Errorf("commands %q", commands)
	}
}

func TestDefaultImage(t *testing.T) {
	w := newWorld(t)
	built, err := w.BuildDefaultImage(t.Context())
	must(t, err)
	if again, err := w.BuildDefaultImage(t.Context()); err != nil || again.ID != built.ID {
		t.Errorf("built again: %s, %v", again.ID, err)
	}
	// It becomes the default when it is ready, not before.
	if s := w.create("before"); s.Image != "debian" {
		t.Errorf("image %s", s.Image)
	}
	w.imageEvents(built, bus.ImageReport{Status: skerry.ImageReady})
	if s := w.create("after"); s.Image != DefaultImageName || s.ImageID != built.ID {
		t.Errorf("image %s", s.Image)
	}
}

func TestDeleteImage(t *testing.T) {
	w := newWorld(t)
	s := w.create("a")
	wantCode(t, "delete while in use", w.DeleteImage(t.Context(), "debian"), skerry.CodeConflict)
	m := w.claimAs(s.ID, 1)
	must(t, w.event(t.Context(), bus.Event{Kind: bus.EventSandbox, RunnerID: runnerA, SandboxID: s.ID, MachineID: m, Status: skerry.StatusFailed}))
	wantCode(t, "delete while a failed sandbox uses it", w.DeleteImage(t.Context(), "debian"), skerry.CodeConflict)
	_, err := w.DeleteSandbox(t.Context(), "a")
	must(t, err)
	must(t, w.event(t.Context(), bus.Event{Kind: bus.EventSandbox, RunnerID: runnerA, SandboxID: s.ID, MachineID: m, Status: skerry.StatusDeleted}))
	w.takeOutbox()
	must(t, w.DeleteImage(t.Context(), "debian"))
	if commands := w.takeOutbox(); len(commands) != 1 || !strings.Contains(commands[0], "image.delete") {
		t.Errorf("commands %q", commands)
	}
	wantCode(t, "delete again", w.DeleteImage(t.Context(), "debian"), skerry.CodeNotFound)
	// The runner that reports it once more is told again.
	w.imageEvents(skerry.Image{ID: s.ImageID}, bus.ImageReport{Status: skerry.ImageReady})
	if commands := w.takeOutbox(); len(commands) != 1 || !strings.Contains(commands[0], "image.delete") {
		t.Errorf("commands %q", commands)
	}
	w.imageEvents(skerry.Image{ID: s.ImageID}, bus.ImageReport{Deleted: true})
	if commands := w.takeOutbox(); len(commands) != 0 {
		t.Errorf("commands %q", commands)
	}
}

func TestWaitImage(t *testing.T) {
	w := newWorld(t)
	for name, end := range map[string]func(i skerry.Image) skerry.ImageStatus{
		"ready": func(i skerry.Image) skerry.ImageStatus {
			w.imageEvents(i, bus.ImageReport{Status: skerry.ImageBuilding}, bus.ImageReport{Status: skerry.ImageReady})
			return skerry.ImageReady
		},
		"failed": func(i skerry.Image) skerry.ImageStatus {
			w.imageEvents(i, bus.ImageReport{Status: skerry.ImageFailed})
			return skerry.ImageFailed
		},
		"deleted": func(i skerry.Image) skerry.ImageStatus {
			must(t, w.DeleteImage(t.Context(), i.Name))
			return skerry.ImageFailed
		},
		"timeout": func(skerry.Image) skerry.ImageStatus {
			w.clock.advance(2 * time.Second)
			return skerry.ImagePending
		},
	} {
		i, err := w.PullImage(t.Context(), skerry.PullRequest{Reference: "wait-" + name})
		must(t, err)
		done := make(chan skerry.Image)
		go func() {
			got, err := w.WaitImage(t.Context(), i.Name, time.Second)
			if err != nil {
				t.Error(err)
			}
			done <- got
		}()
		for deadline := time.Now().Add(limit); ; time.Sleep(time.Millisecond) {
			w.clock.mu.Lock()
			waits := len(w.clock.timers) > 0
			w.clock.mu.Unlock()
			if waits {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("nobody waits")
			}
		}
		want := end(i)
		if got := <-done; got.Status != want {
			t.Errorf("%s: wait ended with %s, want %s", name, got.Status, want)
		}
	}
}

// TestImagesOfAReport: an image under way that the runner does not have is asked
// for again, one that was ready is failed, one that is unknown is removed.
func TestImagesOfAReport(t *testing.T) {
	w := newWorld(t)
	under, err := w.PullImage(t.Context(), skerry.PullRequest{Reference: "under-way", Default: true})
	must(t, err)
	listed, err := w.PullImage(t.Context(), skerry.PullRequest{Reference: "listed"})
	must(t, err)
	debian, err := w.Image(t.Context(), "debian")
	must(t, err)
	w.takeOutbox()
	unknown := skerry.NewImageID()
	r := newReport(runnerA, 2)
	r.Images = []bus.ImageReport{{ImageID: unknown, Status: skerry.ImageReady}, {ImageID: listed.ID, Status: skerry.ImageReady}, {ImageID: debian.ID, Deleted: true}}
	must(t, w.Control.report(t.Context(), r))
	w.wantImage(listed.ID, skerry.ImageReady)
	w.wantImage(under.ID, skerry.ImagePending)
	w.wantImage(debian.ID, skerry.ImageFailed)
	commands := strings.Join(w.takeOutbox(), "\n")
	for _, want := range []string{`"image.delete","image_id":"` + string(unknown), `"image.pull","image_id":"` + string(under.ID)} {
		if !strings.Contains(commands, want) {
			t.Errorf("commands %s\nlack %s", commands, want)
		}
	}
	_, _, err = w.CreateSandbox(t.Context(), request(""))
	wantCode(t, "create from an image that is gone", err, skerry.CodeInvalid)
	w.imageEvents(under, bus.ImageReport{Status: skerry.ImageReady, Config: skerry.ImageConfig{Env: []string{strings.Repeat("x", maxConfigBytes)}}})
	w.wantImage(under.ID, skerry.ImageFailed)
}

func TestImagesNeedARunner(t *testing.T) {
	w := newWorld(t)
	must(t, w.giveUpRunner(t.Context(), runnerA))
	_, err := w.PullImage(t.Context(), skerry.PullRequest{Reference: "a"})
	wantCode(t, "pull", err, skerry.CodeUnavailable)
}
