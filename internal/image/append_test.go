package image_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/image"
)

var appendOptions = image.AppendOptions{Source: "capture", Created: time.Date(2026, 1, 2, 3, 4, 5, 678, time.UTC), CreatedBy: "a test", Comment: "<one & only>"}

// tarOf writes a layer of files that can be run, given by name and content.
func tarOf(files ...string) image.LayerWriter {
	return func(_ context.Context, w io.Writer) error {
		tw := tar.NewWriter(w)
		for i := 0; i < len(files); i += 2 {
			hdr := &tar.Header{Name: files[i], Mode: 0o755, Size: int64(len(files[i+1])), Format: tar.FormatPAX}
			if err := tw.WriteHeader(hdr); err != nil {
				return err
			}
			if _, err := io.WriteString(tw, files[i+1]); err != nil {
				return err
			}
		}
		return tw.Close()
	}
}

// An appended image is its base and one layer, to other tools too, for bases of
// both manifest formats.
func TestAppend(t *testing.T) {
	reg := startRegistry(t, false)
	layout := makeLayout(t, 100_000)
	want := unpack(t, layout, "app")
	want["opt/new"] = "captured\n"
	delete(want, "etc/os-release")
	for _, format := range []string{"oci", "v2s2"} {
		t.Run(format, func(t *testing.T) {
			ref := reg.push(t, layout+":app", "app:"+format, "--format", format)
			s := newStore(t)
			base, err := s.Pull(t.Context(), skerry.PullRequest{Reference: ref, PlainHTTP: true}, nil)
			if err != nil {
				t.Fatal(err)
			}
			var phases []string
			got, err := s.Append(t.Context(), base.Digest, tarOf("opt/new", "captured\n", "etc/.wh.os-release", ""), appendOptions, func(p skerry.PullProgress) {
				if !slices.Contains(phases, p.Phase) {
					phases = append(phases, p.Phase)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			checkImage(t, s, got.Digest, 5)
			if diff := cmp.Diff(base.Config, got.Config); diff != "" {
				t.Errorf("configuration (-base +new):\n%s", diff)
			}
			if got.Platform != base.Platform || got.Source != "capture" || got.LayerCount != 5 || phases[0] != "building" {
				t.Errorf("%+v, phases %q", got, phases)
			}
			dir := filepath.Join(t.TempDir(), "out")
			if _, err := s.WriteLayout(t.Context(), got.Digest, dir); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, unpack(t, dir, "latest")); diff != "" {
				t.Errorf("tree (-want +got):\n%s", diff)
			}
			var config struct {
				Created time.Time
				History []struct {
					Comment    string
					CreatedBy  string `json:"created_by"`
					EmptyLayer bool   `json:"empty_layer"`
				}
			}
			if err := json.Unmarshal([]byte(run(t, "skopeo", "inspect", "--config", "--raw", "oci:"+dir+":latest")), &config); err != nil {
				t.Fatal(err)
			}
			last := config.History[len(config.History)-1]
			if !config.Created.Equal(appendOptions.Created) || last.Comment != appendOptions.Comment || last.CreatedBy != "a test" || last.EmptyLayer {
				t.Errorf("configuration %+v", config)
			}
		})
	}
}

// The layers of the base are stored once, and go when the last image of them
// goes, whichever that is.
func TestAppendSharesLayers(t *testing.T) {
	layout := makeLayout(t, 1000)
	for _, baseFirst := range []bool{true, false} {
		dir := t.TempDir()
		s, err := image.Open(storeOptions(dir))
		if err != nil {
			t.Fatal(err)
		}
		base, err := s.Import(t.Context(), skerry.ImportRequest{Path: layout, Tag: "app"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		before := files(t, dir)
		first, err := s.Append(t.Context(), base.Digest, tarOf("a", "1"), appendOptions, nil)
		if err != nil {
			t.Fatal(err)
		}
		second, err := s.Append(t.Context(), first.Digest, tarOf("b", "2"), appendOptions, nil)
		if err != nil {
			t.Fatal(err)
		}
		// Of each new image: manifest, configuration, blob, layer and its facts, record.
		if got, want := len(files(t, dir)), len(before)+2*6; got != want {
			t.Errorf("%d files, want %d", got, want)
		}
		order := []string{base.Digest, first.Digest, second.Digest}
		if !baseFirst {
			slices.Reverse(order)
		}
		for i, digest := range order {
			if err := s.Delete(digest); err != nil {
				t.Fatal(err)
			}
			for _, left := range order[i+1:] {
				info, err := s.Get(left)
				if err != nil {
					t.Fatal(err)
				}
				checkImage(t, s, left, info.LayerCount)
				if _, err := s.WriteLayout(t.Context(), left, filepath.Join(t.TempDir(), "out")); err != nil {
					t.Error(err)
				}
			}
		}
		if left := files(t, dir); len(left) != 0 {
			t.Errorf("left over: %q", left)
		}
		s.Close()
	}
}

// Equal input gives an equal image, also at the same time.
func TestAppendIsDeterministic(t *testing.T) {
	layout := makeLayout(t, 1000)
	digests := make(map[string]bool)
	for range 2 {
		s := newStore(t)
		base, err := s.Import(t.Context(), skerry.ImportRequest{Path: layout, Tag: "app"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		var mu sync.Mutex
		for range 4 {
			wg.Go(func() {
				info, err := s.Append(t.Context(), base.Digest, tarOf("a", strings.Repeat("text ", 50_000)), appendOptions, nil)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Error(err)
				}
				digests[info.Digest] = true
			})
		}
		wg.Wait()
		for digest := range digests {
			checkImage(t, s, digest, 5)
		}
	}
	if len(digests) != 1 {
		t.Errorf("digests %v, want one", digests)
	}
}

// Nothing is left of an image that could not be made.
func TestAppendFails(t *testing.T) {
	layout := makeLayout(t, 1000)
	full := false
	dir := t.TempDir()
	s, err := image.Open(storeOptions(dir, func(o *image.Options) {
		o.KeepUnused = time.Hour
		o.Limits.LayerBytes, o.Limits.Layers = 1<<20, 5
		o.Converter = &copyConverter{before: func(image.Conversion) error {
			if full {
				return fmt.Errorf("write: %w", syscall.ENOSPC)
			}
			return nil
		}}
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	base, err := s.Import(t.Context(), skerry.ImportRequest{Path: layout, Tag: "app"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	before := files(t, dir)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	full = true
	fails := func(err error) image.LayerWriter {
		return func(_ context.Context, w io.Writer) error {
			_, writeErr := io.WriteString(w, randomText(300_000))
			return errors.Join(writeErr, err)
		}
	}
	for _, c := range []struct {
		name  string
		ctx   context.Context
		base  string
		layer image.LayerWriter
		want  skerry.Code
	}{
		{"disk full in the conversion", t.Context(), base.Digest, tarOf("a", randomText(100_000)), skerry.CodeExhausted},
		{"disk full in the layer", t.Context(), base.Digest, fails(syscall.ENOSPC), skerry.CodeExhausted},
		{"layer fails", t.Context(), base.Digest, fails(skerry.Errorf(skerry.CodeConflict, "gone")), skerry.CodeConflict},
		{"too large", t.Context(), base.Digest, tarOf("a", strings.Repeat("0", 1<<20)), skerry.CodeTooLarge},
		{"cancelled", cancelled, base.Digest, tarOf("a", "1"), skerry.CodeUnavailable},
		{"no base", t.Context(), "sha256:" + strings.Repeat("0", 64), tarOf("a", "1"), skerry.CodeNotFound},
	} {
		if _, err := s.Append(c.ctx, c.base, c.layer, appendOptions, nil); skerry.CodeOf(err) != c.want {
			t.Errorf("%s: code %q, want %q: %v", c.name, skerry.CodeOf(err), c.want, err)
		}
		if diff := cmp.Diff(before, files(t, dir)); diff != "" {
			t.Errorf("%s: files (-before +after):\n%s", c.name, diff)
		}
	}
	full = false
	five, err := s.Append(t.Context(), base.Digest, tarOf("a", "1"), appendOptions, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Append(t.Context(), five.Digest, tarOf("a", "1"), appendOptions, nil); skerry.CodeOf(err) != skerry.CodeInvalid {
		t.Errorf("layer over the limit: %v", err)
	}
}

// A base whose configuration has fields of its own, and less history than layers.
func TestAppendToOddConfigurations(t *testing.T) {
	for name, history := range map[string]string{
		"none":  `null`,
		"empty": `[]`,
		"short": `[{"created_by":"<b>","empty_layer":true},{"created_by":"one"}]`,
	} {
		s := newStore(t)
		base, err := s.Import(t.Context(), skerry.ImportRequest{Path: oddLayout(t, history)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		info, err := s.Append(t.Context(), base.Digest, tarOf("a", "1"), appendOptions, nil)
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(t.TempDir(), "out")
		if _, err := s.WriteLayout(t.Context(), info.Digest, dir); err != nil {
			t.Fatal(err)
		}
		raw := run(t, "skopeo", "inspect", "--config", "--raw", "oci:"+dir+":latest")
		var config struct {
			History []struct {
				EmptyLayer bool `json:"empty_layer"`
			}
		}
		if err := json.Unmarshal([]byte(raw), &config); err != nil {
			t.Fatal(err)
		}
		full := 0
		for _, h := range config.History {
			if !h.EmptyLayer {
				full++
			}
		}
		if full != 3 {
			t.Errorf("%s: %d entries of history for 3 layers: %s", name, full, raw)
		}
		for _, part := range []string{`"number":12345678901234567890`, `"x-own":{"<tag>":[1,2.50]}`} {
			if !strings.Contains(raw, part) {
				t.Errorf("%s: configuration lacks %s: %s", name, part, raw)
			}
		}
	}
}

// oddLayout is an OCI layout of an image with two layers.
func oddLayout(t *testing.T, history string) string {
	t.Helper()
	dir := t.TempDir()
	blob := func(mediaType string, data []byte) string {
		digest := digestOf(data)
		writeFile(t, filepath.Join(dir, "blobs/sha256", digest[7:]), string(data))
		return fmt.Sprintf(`{"mediaType":%q,"digest":%q,"size":%d}`, mediaType, digest, len(data))
	}
	var layers, diffIDs []string
	for _, name := range []string{"one", "two"} {
		var b bytes.Buffer
		if err := tarOf(name, "1")(t.Context(), &b); err != nil {
			t.Fatal(err)
		}
		layers = append(layers, blob("application/vnd.oci.image.layer.v1.tar", b.Bytes()))
		diffIDs = append(diffIDs, `"`+digestOf(b.Bytes())+`"`)
	}
	config := blob("application/vnd.oci.image.config.v1+json", fmt.Appendf(nil,
		`{"os":"linux","architecture":"amd64","config":{"number":12345678901234567890},"x-own":{"<tag>":[1,2.50]},"history":%s,"rootfs":{"type":"layers","diff_ids":[%s]}}`,
		history, strings.Join(diffIDs, ",")))
	manifest := blob("application/vnd.oci.image.manifest.v1+json", fmt.Appendf(nil,
		`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":%s,"layers":[%s]}`, config, strings.Join(layers, ",")))
	writeFile(t, filepath.Join(dir, "oci-layout"), `{"imageLayoutVersion":"1.0.0"}`)
	writeFile(t, filepath.Join(dir, "index.json"), `{"schemaVersion":2,"manifests":[`+manifest+`]}`)
	return dir
}

// TestCrashOfAppend is TestCrash for Append: afterwards the base is whole, the new
// image is there and whole or not there, and it can be made again.
func TestCrashOfAppend(t *testing.T) {
	strace := needTool(t, "strace")
	layout := makeLayout(t, 1000)
	for _, c := range []struct {
		calls string
		step  int
	}{{"renameat,rename,renameat2", 1}, {"fsync", 1}, {"openat", 17}, {"write", 7}} {
		t.Run(c.calls, func(t *testing.T) {
			for n := 1; ; n += c.step {
				dir := t.TempDir()
				s, err := image.Open(storeOptions(dir))
				if err != nil {
					t.Fatal(err)
				}
				base, err := s.Import(t.Context(), skerry.ImportRequest{Path: layout, Tag: "app"}, nil)
				if err != nil {
					t.Fatal(err)
				}
				s.Close()
				cmd := exec.Command(strace, "-f", "-qq", "-o", os.DevNull, "-e", "trace="+c.calls,
					"-e", fmt.Sprintf("inject=%s:signal=KILL:when=%d", c.calls, n), os.Args[0])
				cmd.Env = append(os.Environ(), crashEnv+"="+dir+" append:"+base.Digest+" never")
				out, err := cmd.CombinedOutput()
				var exit *exec.ExitError
				if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != -1) {
					t.Fatalf("call %d: %v\n%s", n, err, out)
				}
				checkAfterCrashOfAppend(t, dir, base.Digest)
				if err == nil {
					if n == 1 {
						t.Fatal("nothing was killed")
					}
					t.Logf("killed at %d places", (n-1)/c.step)
					return
				}
			}
		})
	}
}

func checkAfterCrashOfAppend(t *testing.T, dir, base string) {
	t.Helper()
	s, err := image.Open(storeOptions(dir, func(o *image.Options) { o.KeepUnused = -1 }))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, info := range s.List() {
		checkImage(t, s, info.Digest, info.LayerCount)
	}
	info, err := s.Append(t.Context(), base, tarOf("new", randomText(200_000)), appendOptions, nil)
	if err != nil {
		t.Fatal(err)
	}
	checkImage(t, s, info.Digest, 5)
	for _, digest := range []string{base, info.Digest} {
		if err := s.Delete(digest); err != nil {
			t.Fatal(err)
		}
	}
	if left := files(t, dir); len(left) != 0 {
		t.Fatalf("left over: %q", left)
	}
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}
