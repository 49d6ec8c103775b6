package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"skerry.dev/skerry"
)

// control keeps sandboxes in memory; they run at once. Everything that happens
// is a line in a log that scripts look at.
type control struct {
	mu        sync.Mutex
	sandboxes []skerry.Sandbox
	images    []skerry.Image
	snapshots []skerry.Snapshot
	events    []skerry.Event
	log       *os.File
	toolbox   string // address
}

func newControl(t testing.TB, dir, toolbox string) *control {
	t.Helper()
	log, err := os.Create(filepath.Join(dir, "control.log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	return &control{log: log, toolbox: toolbox, images: []skerry.Image{{
		ID: skerry.NewImageID(), Name: "debian", Status: skerry.ImageReady, Platform: "linux/amd64", Default: true,
		Bytes: 300 << 20, LayerCount: 1, Config: skerry.ImageConfig{Entrypoint: []string{"echo"}, Cmd: []string{"from the image"}},
	}}}
}

func (c *control) find(idOrName string) (*skerry.Sandbox, error) {
	for i := range c.sandboxes {
		if sb := &c.sandboxes[i]; string(sb.ID) == idOrName || sb.Name == idOrName {
			return sb, nil
		}
	}
	return nil, skerry.Errorf(skerry.CodeNotFound, "there is no sandbox %q", idOrName)
}

func (c *control) CreateSandbox(_ context.Context, req skerry.SandboxRequest) (skerry.Sandbox, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if sb, err := c.find(req.Name); err == nil {
		return *sb, false, nil
	}
	if req.Image == "nowhere" {
		return skerry.Sandbox{}, false, skerry.Errorf(skerry.CodeNotFound, "there is no image %q", req.Image)
	}
	sb := skerry.Sandbox{
		ID: skerry.NewSandboxID(), Name: req.Name, Image: "debian", ImageID: c.images[0].ID, Labels: req.Labels,
		Env: req.Env, Resources: req.Resources, Status: skerry.StatusRunning, State: skerry.StatusRunning.State(), CreatedAt: time.Now(),
		Persistent: req.Persistent, Spot: req.Spot, Lifecycle: lifecycleOf(req.Policy),
	}
	if req.Image == "broken" {
		sb.Status, sb.State, sb.Reason = skerry.StatusFailed, skerry.StatusFailed.State(), "the kernel\npanicked"
	}
	c.sandboxes = append(c.sandboxes, sb)
	c.log.WriteString("create " + sb.Name + "\n")
	c.changed(sb)
	return sb, true, nil
}

func (c *control) Sandbox(_ context.Context, id string) (skerry.Sandbox, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sb, err := c.find(id)
	if err != nil {
		return skerry.Sandbox{}, err
	}
	return *sb, nil
}

func (c *control) ListSandboxes(_ context.Context, f skerry.SandboxFilter) (skerry.SandboxPage, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var page skerry.SandboxPage
	for _, sb := range c.sandboxes {
		matches := len(f.Statuses) == 0 || slices.Contains(f.Statuses, sb.Status)
		for k, v := range f.Labels {
			matches = matches && sb.Labels[k] == v
		}
		if matches && sb.Status != skerry.StatusDeleted {
			page.Items = append(page.Items, sb)
		}
	}
	return page, nil
}

func (c *control) WaitSandbox(ctx context.Context, id string, _ []skerry.Status, _ time.Duration) (skerry.Sandbox, error) {
	return c.Sandbox(ctx, id)
}

func (c *control) DeleteSandbox(_ context.Context, id string) (skerry.Sandbox, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sb, err := c.find(id)
	if err != nil {
		return skerry.Sandbox{}, err
	}
	sb.Status, sb.State = skerry.StatusDeleted, skerry.StatusDeleted.State()
	c.log.WriteString("delete " + sb.Name + "\n")
	c.changed(*sb)
	return *sb, nil
}

func (c *control) addImage(name, source string) (skerry.Image, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	img := skerry.Image{ID: skerry.NewImageID(), Name: name, Source: source, Status: skerry.ImageReady, CreatedAt: time.Now()}
	c.images = append(c.images, img)
	return img, nil
}

func (c *control) PullImage(_ context.Context, req skerry.PullRequest) (skerry.Image, error) {
	c.log.WriteString("pull " + req.Reference + "\n")
	return c.addImage(req.Name, req.Reference)
}

func (c *control) ImportImage(_ context.Context, req skerry.ImportRequest) (skerry.Image, error) {
	data, err := os.ReadFile(req.Path)
	if err != nil {
		return skerry.Image{}, err
	}
	c.log.WriteString("import " + req.Name + " " + string(data) + "\n")
	return c.addImage(req.Name, "archive")
}

func (c *control) BuildDefaultImage(context.Context) (skerry.Image, error) { return c.images[0], nil }

func (c *control) Image(_ context.Context, id string) (skerry.Image, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, img := range c.images {
		if string(img.ID) == id || img.Name == id {
			return img, nil
		}
	}
	return skerry.Image{}, skerry.Errorf(skerry.CodeNotFound, "there is no image %q", id)
}

func (c *control) ListImages(context.Context) ([]skerry.Image, error) { return c.images, nil }

func (c *control) WaitImage(ctx context.Context, id string, _ time.Duration) (skerry.Image, error) {
	return c.Image(ctx, id)
}

func (c *control) DeleteImage(ctx context.Context, id string) error {
	_, err := c.Image(ctx, id)
	return err
}

func (c *control) Runners(context.Context) ([]skerry.Runner, error) {
	return []skerry.Runner{{ID: "run_test", Hostname: "host", Arch: "amd64", Online: true, Accel: "tcg"}}, nil
}

// Ready implements gateway.Dialer.
func (c *control) Ready(skerry.SandboxID) error { return nil }

// DialToolbox implements gateway.Dialer.
func (c *control) DialToolbox(ctx context.Context, id skerry.SandboxID) (net.Conn, error) {
	sb, err := c.Sandbox(ctx, string(id))
	if err != nil {
		return nil, err
	}
	if sb.Status != skerry.StatusRunning {
		return nil, skerry.Errorf(skerry.CodeConflict, "sandbox %s is %s", id, sb.Status)
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", c.toolbox)
}
