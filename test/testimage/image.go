// Package testimage makes the images of the black-box tests with umoci and
// skopeo, tools that are independent of this project. Test support only.
package testimage

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// The images of a Layout.
const (
	// Shell has busybox and the probe, users root and app, and in its
	// configuration USER app, WORKDIR /home/app, two variables of Env and a
	// command line.
	Shell = "shell"
	// Static has a single static program and nothing else, not even /tmp.
	Static = "static"
	// Layers is Shell and layers on top that change it in every way.
	Layers = "layers"
)

// ShellEnv is the environment of Shell's configuration.
var ShellEnv = []string{"PATH=/usr/local/bin:/bin", "GREETING=two words\nand a line", "EMPTY="}

// Layout is an OCI layout that holds the images as tags.
type Layout struct{ Path string }

// Build makes the images below dir. It needs root, since they hold files of
// several owners, umoci, and Debian's busybox-static.
func Build(ctx context.Context, dir string) (Layout, error) {
	b := builder{ctx: ctx, dir: dir, layout: filepath.Join(dir, "layout")}
	if os.Getuid() != 0 {
		return Layout{}, fmt.Errorf("images with files of several owners are made by root only; type: sudo make test")
	}
	for _, tool := range []string{"umoci", "skopeo", "busybox"} {
		if _, err := exec.LookPath(tool); err != nil {
			return Layout{}, fmt.Errorf("%w; type: make setup-test", err)
		}
	}
	b.run("umoci", "init", "--layout", b.layout)
	probe := filepath.Join(dir, "probe")
	b.buildProbe(probe)
	b.image(Static, func(root string) { b.copyProgram(probe, root, "probe") })
	b.run("umoci", "config", "--image", b.ref(Static), "--config.entrypoint", "/probe")
	b.image(Shell, func(root string) { b.shellRoot(root, probe) })
	args := []string{"config", "--image", b.ref(Shell), "--config.user", "app", "--config.workingdir", "/home/app",
		"--config.entrypoint", "/bin/echo", "--config.cmd", "from the image"}
	for _, env := range ShellEnv {
		args = append(args, "--config.env", env)
	}
	b.run("umoci", args...)
	b.layers()
	return Layout{b.layout}, b.err
}

// Ref is an image as umoci and skopeo ("oci:" in front) name it.
func (l Layout) Ref(tag string) string { return l.Path + ":" + tag }

// Archive writes an image to a file, kind "oci-archive" or "docker-archive".
func (l Layout) Archive(ctx context.Context, tag, kind, file string) error {
	return run(ctx, "skopeo", "copy", "--quiet", "oci:"+l.Ref(tag), kind+":"+file+":skerry.test/"+tag+":latest")
}

// Unpack unpacks an image with umoci and returns its root directory.
func (l Layout) Unpack(ctx context.Context, tag, bundle string) (string, error) {
	err := run(ctx, "umoci", "unpack", "--image", l.Ref(tag), bundle)
	return filepath.Join(bundle, "rootfs"), err
}

func run(ctx context.Context, name string, args ...string) error {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// builder keeps the first error.
type builder struct {
	ctx         context.Context
	dir, layout string
	err         error
}

func (b *builder) ref(tag string) string { return b.layout + ":" + tag }

func (b *builder) do(err error) {
	if b.err == nil {
		b.err = err
	}
}

func (b *builder) run(name string, args ...string) {
	if b.err == nil {
		b.err = run(b.ctx, name, args...)
	}
}

// buildProbe builds the probe, which is beside this package.
func (b *builder) buildProbe(to string) {
	if b.err != nil {
		return
	}
	cmd := exec.CommandContext(b.ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", to, "skerry.dev/skerry/test/probe")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		b.err = fmt.Errorf("build the probe: %w: %s", err, out)
	}
}

// image makes an image of one layer.
func (b *builder) image(tag string, fill func(root string)) {
	bundle := filepath.Join(b.dir, "bundle-"+tag)
	b.run("umoci", "new", "--image", b.ref(tag))
	b.run("umoci", "unpack", "--image", b.ref(tag), bundle)
	if b.err == nil {
		fill(filepath.Join(bundle, "rootfs"))
	}
	b.run("umoci", "repack", "--image", b.ref(tag), bundle)
	b.do(os.RemoveAll(bundle))
}

func (b *builder) copyProgram(from, root, name string) {
	data, err := os.ReadFile(from)
	b.do(err)
	b.write(root, name, string(data), 0o755)
}

func (b *builder) write(root, name, content string, mode os.FileMode) {
	b.do(os.WriteFile(filepath.Join(root, name), []byte(content), 0o600))
	b.mode(root, name, mode)
}

// mode sets the permission bits, whatever the umask.
func (b *builder) mode(root, name string, mode os.FileMode) {
	b.do(os.Chmod(filepath.Join(root, name), mode))
}

func (b *builder) mkdir(root, name string, mode os.FileMode) {
	b.do(os.Mkdir(filepath.Join(root, name), 0o700))
	b.mode(root, name, mode)
}

func (b *builder) owner(root, name string, uid, gid int) {
	b.do(os.Lchown(filepath.Join(root, name), uid, gid))
}

func (b *builder) symlink(root, name, target string) {
	b.do(os.Symlink(target, filepath.Join(root, name)))
}

func (b *builder) shellRoot(root, probe string) {
	for _, dir := range []string{"bin", "etc", "home", "home/app", "lib", "root", "usr", "usr/local", "usr/local/bin"} {
		b.mkdir(root, dir, 0o755)
	}
	b.mkdir(root, "tmp", 0o777|os.ModeSticky)
	b.owner(root, "home/app", 1000, 1000)
	b.write(root, "etc/passwd", "root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000:app:/home/app:/bin/sh\n", 0o644)
	b.write(root, "etc/group", "root:x:0:\napp:x:1000:\n", 0o644)
	b.copyProgram(probe, root, "bin/probe")
	busybox, err := exec.LookPath("busybox")
	b.do(err)
	b.copyProgram(busybox, root, "bin/busybox")
	applets, err := exec.CommandContext(b.ctx, busybox, "--list").Output()
	b.do(err)
	for _, applet := range strings.Fields(string(applets)) {
		if applet != "busybox" {
			b.symlink(root, "bin/"+applet, "busybox")
		}
	}
}
