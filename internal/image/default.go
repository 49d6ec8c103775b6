package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"

	"skerry.dev/skerry"
)

const (
	// DefaultImageName is what the image of BuildDefault is registered as.
	DefaultImageName = skerry.DefaultImageName
	// SourceBuilt is the Info.Source of an image that was built on this host.
	SourceBuilt = "mmdebstrap"

	defaultPackages = "python3,nodejs,git,curl,ca-certificates"
	debianKeyring   = "/usr/share/keyrings/debian-archive-keyring.gpg"
	aptHelper       = "/usr/lib/apt/apt-helper"
	guestPath       = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	// stopGrace is how long mmdebstrap may take to unmount and clean up.
	stopGrace = 10 * time.Second
)

// BuildDefault builds Debian 12 with Python 3, Node.js, git, curl and CA
// certificates from Debian packages and registers it. As root it uses chroot(2),
// as an ordinary user a user namespace. The same state of the Debian archive
// gives the same bytes, and so the same digest.
//
// It is one layer. Two, a base and the tools, would share the base between
// builds; but dpkg's and apt's state change with every update, and a second run
// of mmdebstrap costs more than the 170 MB are worth.
//
// Errors: CodeUnavailable with what to type if a program or right is missing, or
// the build fails (its last lines are in the message), CodeExhausted.
func (s *Store) BuildDefault(ctx context.Context, progress func(skerry.PullProgress)) (Info, error) {
	t := newTracker(progress)
	t.enter(phaseResolving, 0)
	info, err := s.buildDefault(ctx, t)
	return info, s.afterFailure(fault(err, "build image %s", DefaultImageName))
}

func (s *Store) buildDefault(ctx context.Context, t *tracker) (Info, error) {
	unlock, err := s.busy.lock(ctx, "build") // the build area is one
	if err != nil {
		return Info{}, err
	}
	defer unlock()
	mode, err := buildMode(ctx)
	if err != nil {
		return Info{}, err
	}
	dir, err := os.MkdirTemp(s.path("tmp"), "build-*")
	if err != nil {
		return Info{}, err
	}
	defer os.RemoveAll(dir)
	sources, err := debianSources(ctx, dir)
	if err != nil {
		return Info{}, err
	}
	epoch, err := archiveTime(ctx, sources, dir)
	if err != nil {
		return Info{}, err
	}
	t.enter(phaseBuilding, 0)
	area, err := s.newBuildArea(ctx, mode)
	if err != nil {
		return Info{}, err
	}
	layer, diffID, err := bootstrap(ctx, area, sources, epoch, filepath.Join(dir, "layer"), t)
	if removeErr := area.remove(context.WithoutCancel(ctx)); removeErr != nil {
		s.opt.Log.Warn("build area not removed", "dir", area.dir, "err", removeErr)
	}
	if err != nil {
		return Info{}, err
	}
	img, err := defaultImage(layer, diffID, epoch)
	if err != nil {
		return Info{}, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Info{}, err
	}
	defer root.Close()
	src := archiveSource{archive: dirArchive{root}, names: map[v1.Hash]string{layer.Digest: "layer"}}
	return s.register(ctx, img, src, SourceBuilt, t)
}

// archiveTime is the date of the newest suite: nothing in the archive is newer,
// so it can be the time of what is made at build (SOURCE_DATE_EPOCH) without
// making a package's file older than what was compiled from it, which Python
// would compile again at each start. apt fetches it, with the host's proxy.
func archiveTime(ctx context.Context, sources []suiteSource, dir string) (time.Time, error) {
	var newest time.Time
	for i, src := range sources {
		file := filepath.Join(dir, fmt.Sprintf("InRelease.%d", i))
		url := fmt.Sprintf("%s/dists/%s/InRelease", strings.TrimSuffix(src.build.uri, "/"), src.build.suite)
		out, err := exec.CommandContext(ctx, aptHelper, "download-file", url, file).CombinedOutput()
		if ctx.Err() != nil {
			return newest, ctx.Err()
		}
		if err != nil {
			return newest, skerry.Errorf(skerry.CodeUnavailable, "Debian archive %s: %w: %s",
				withoutLogin(src.build.uri), err, lastLines(out, 3))
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return newest, err
		}
		date, err := releaseDate(data)
		if err != nil {
			return newest, skerry.Errorf(skerry.CodeUnavailable, "Debian archive, suite %s: %w", src.build.suite, err)
		}
		if date.After(newest) {
			newest = date
		}
	}
	return newest, nil
}

// releaseDate is the Date of an InRelease file. It is not verified here:
// mmdebstrap verifies what it installs, and this only dates it.
func releaseDate(inRelease []byte) (time.Time, error) {
	for line := range strings.Lines(string(inRelease)) {
		if value, ok := strings.CutPrefix(line, "Date:"); ok {
			return time.Parse(time.RFC1123, strings.TrimSpace(value))
		}
	}
	return time.Time{}, fmt.Errorf("InRelease has no date")
}

// bootstrap runs mmdebstrap and compresses its tar into file.
func bootstrap(ctx context.Context, area *buildArea, sources []suiteSource, epoch time.Time, file string, t *tracker) (layer v1.Descriptor, diffID v1.Hash, err error) {
	out, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return layer, diffID, err
	}
	defer out.Close()
	blobHash, tarHash := sha256.New(), sha256.New()
	size := &countWriter{}
	zip, err := gzip.NewWriterLevel(io.MultiWriter(out, blobHash, size), gzip.DefaultCompression)
	if err != nil {
		return layer, diffID, err
	}
	cmd := mmdebstrap(ctx, area, sources, epoch)
	cmd.Stdout = &countWriter{w: io.MultiWriter(zip, tarHash), track: t}
	log := &tailWriter{}
	cmd.Stderr = log
	// The signal for a dead parent is tied to the thread that started the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return layer, diffID, ctx.Err()
		}
		if code, _ := codeOf(err); code == skerry.CodeExhausted || bytes.Contains(log.buf, []byte("No space left on device")) {
			return layer, diffID, skerry.Errorf(skerry.CodeExhausted, "the disk is full: mmdebstrap: %w", err)
		}
		return layer, diffID, skerry.Errorf(skerry.CodeUnavailable, "mmdebstrap: %w: %s", err, lastLines(log.buf, 8))
	}
	if err := zip.Close(); err != nil {
		return layer, diffID, err
	}
	layer = v1.Descriptor{MediaType: types.OCILayer, Size: size.n,
		Digest: v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(blobHash.Sum(nil))}}
	return layer, v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(tarHash.Sum(nil))}, out.Sync()
}

// mmdebstrap is the command that writes the root file system as a tar to its
// standard output. The sources, which may hold a login, go in by standard input.
func mmdebstrap(ctx context.Context, area *buildArea, sources []suiteSource, epoch time.Time) *exec.Cmd {
	var build, guest strings.Builder
	for _, src := range sources {
		build.WriteString(src.build.line())
		guest.WriteString(src.guest.line())
	}
	cmd := exec.CommandContext(ctx, "mmdebstrap", "--mode="+area.mode, "--variant=minbase", "--format=tar",
		"--architectures="+runtime.GOARCH, "--include="+defaultPackages, "--keyring="+debianKeyring,
		// mmdebstrap copies these two from the host; the agent writes them at start.
		`--customize-hook=echo localhost > "$1/etc/hostname"`,
		`--customize-hook=: > "$1/etc/resolv.conf"`,
		`--customize-hook=rm -f "$1"/etc/apt/sources.list.d/* && printf %s '`+guest.String()+`' > "$1/etc/apt/sources.list"`,
		debianRelease, "-", "-")
	cmd.Stdin = strings.NewReader(build.String())
	cmd.Env = append(buildEnv(os.Environ(), area.dir), "SOURCE_DATE_EPOCH="+strconv.FormatInt(epoch.Unix(), 10))
	// Its own process group, so that all of it can be told to stop. mmdebstrap
	// removes its directory when it is asked to, also by the death of this process.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if area.mode == modeRoot { // its mounts must not outlive it, even if it is killed
		cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
	}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = stopGrace
	return cmd
}

// buildEnv is the environment of mmdebstrap, and so of the packages' maintainer
// scripts. Of the host's variables it has apt's proxies only: what others do
// would be in the image, for example PYTHONDONTWRITEBYTECODE.
func buildEnv(host []string, tmp string) []string {
	env := []string{"PATH=" + guestPath, "HOME=/", "TMPDIR=" + tmp, "LC_ALL=C.UTF-8", "TZ=UTC"}
	for _, v := range host {
		switch name, _, _ := strings.Cut(v, "="); name {
		case "http_proxy", "https_proxy", "no_proxy":
			env = append(env, v)
		}
	}
	return env
}

// defaultImage describes the one layer as an image.
func defaultImage(layer v1.Descriptor, diffID v1.Hash, epoch time.Time) (*resolved, error) {
	platform, err := parsePlatform("")
	if err != nil {
		return nil, err
	}
	cfg := v1.ConfigFile{
		OS: platform.OS, Architecture: platform.Architecture, Created: v1.Time{Time: epoch.UTC()},
		RootFS:  v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{diffID}},
		History: []v1.History{{Created: v1.Time{Time: epoch.UTC()}, CreatedBy: "mmdebstrap --variant=minbase --include=" + defaultPackages + " " + debianRelease}},
		Config:  v1.Config{Env: []string{"PATH=" + guestPath}, Cmd: []string{"bash"}},
	}
	rawConfig, err := json.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	raw, err := json.Marshal(v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1,
		Config: v1.Descriptor{MediaType: types.OCIConfigJSON, Digest: digestOf(rawConfig), Size: int64(len(rawConfig))},
		Layers: []v1.Descriptor{layer}})
	if err != nil {
		return nil, err
	}
	doc, err := parseDocument(raw, "")
	if err != nil {
		return nil, err
	}
	return newResolved(raw, doc, rawConfig, platform)
}

// countWriter counts what passes on to w, which may be nil.
type countWriter struct {
	w     io.Writer
	n     int64
	track *tracker // or nil
}

func (c *countWriter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	if c.track != nil {
		c.track.transferred(int64(len(p)))
	}
	if c.w == nil {
		return len(p), nil
	}
	return c.w.Write(p)
}

// tailWriter keeps the end of what is written to it.
type tailWriter struct{ buf []byte }

const maxTail = 16 << 10

func (t *tailWriter) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - maxTail; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

func lastLines(out []byte, n int) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return strings.Join(lines[max(len(lines)-n, 0):], " | ")
}
