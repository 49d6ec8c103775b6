package control

import (
	"context"
	"time"

	"skerry.dev/skerry"
)

var errSoon = skerry.Errorf(skerry.CodeUnsupported, "is being written")

func (c *Control) StopSandbox(ctx context.Context, idOrName string) (skerry.Sandbox, error) {
	return skerry.Sandbox{}, errSoon
}
func (c *Control) StartSandbox(ctx context.Context, idOrName string) (skerry.Sandbox, error) {
	return skerry.Sandbox{}, errSoon
}
func (c *Control) PauseSandbox(ctx context.Context, idOrName string) (skerry.Sandbox, error) {
	return skerry.Sandbox{}, errSoon
}
func (c *Control) ResumeSandbox(ctx context.Context, idOrName string) (skerry.Sandbox, error) {
	return skerry.Sandbox{}, errSoon
}
func (c *Control) ReclaimSandbox(ctx context.Context, idOrName string) (skerry.Sandbox, error) {
	return skerry.Sandbox{}, errSoon
}
func (c *Control) ForkSandbox(ctx context.Context, idOrName string, req skerry.ForkRequest) ([]skerry.Sandbox, error) {
	return nil, errSoon
}
func (c *Control) CaptureImage(ctx context.Context, idOrName string, req skerry.CaptureRequest) (skerry.Image, error) {
	return skerry.Image{}, errSoon
}
func (c *Control) PushImage(ctx context.Context, idOrName string, req skerry.PushRequest) (skerry.Image, error) {
	return skerry.Image{}, errSoon
}
func (c *Control) CreateSnapshot(ctx context.Context, idOrName, name string) (skerry.Snapshot, error) {
	return skerry.Snapshot{}, errSoon
}
func (c *Control) Snapshot(ctx context.Context, idOrName string) (skerry.Snapshot, error) {
	return skerry.Snapshot{}, errSoon
}
func (c *Control) ListSnapshots(ctx context.Context) ([]skerry.Snapshot, error) {
	return nil, errSoon
}
func (c *Control) WaitSnapshot(ctx context.Context, idOrName string, timeout time.Duration) (skerry.Snapshot, error) {
	return skerry.Snapshot{}, errSoon
}
func (c *Control) DeleteSnapshot(ctx context.Context, idOrName string) error { return errSoon }
func (c *Control) RestoreSnapshot(ctx context.Context, idOrName string, req skerry.RestoreRequest) (sb skerry.Sandbox, created bool, err error) {
	return skerry.Sandbox{}, false, errSoon
}
func (c *Control) TouchSandbox(ctx context.Context, idOrName string) (skerry.Lifecycle, error) {
	return skerry.Lifecycle{}, errSoon
}
func (c *Control) UpdateLifecycle(ctx context.Context, idOrName string, req skerry.PolicyRequest) (skerry.Lifecycle, error) {
	return skerry.Lifecycle{}, errSoon
}
func (c *Control) Activity(id skerry.SandboxID) {}
func (c *Control) Events(ctx context.Context, filter skerry.EventFilter) ([]skerry.Event, error) {
	return nil, errSoon
}
func (c *Control) WaitEvents(ctx context.Context, filter skerry.EventFilter, timeout time.Duration) ([]skerry.Event, error) {
	return nil, errSoon
}
