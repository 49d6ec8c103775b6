package scenario

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
	"skerry.dev/skerry/test/testimage"
)

// registry starts a registry without TLS and returns its address and the number
// of requests it has logged.
func registry(t *testing.T) (addr string, requests func() int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr = l.Addr().String()
	l.Close()
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yml")
	text := fmt.Sprintf("version: 0.1\nlog: {accesslog: {disabled: false}}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: %q}\n", dir, addr)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("docker-registry", "serve", config)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v; type: make setup-test", err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		log.Close()
	})
	eventually(t, 20*time.Second, func() string {
		resp, err := http.Get("http://" + addr + "/v2/")
		if err != nil {
			return err.Error()
		}
		resp.Body.Close()
		return ""
	})
	return addr, func() int {
		b, err := os.ReadFile(log.Name())
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Count(b, []byte(`"GET /v2/`)) + bytes.Count(b, []byte(`"HEAD /v2/`))
	}
}

// platformPlaces are the only places where a sandbox may differ from its image:
// where the platform mounts file systems, modules and the sandbox's identity.
var platformPlaces = []string{"proc", "sys", "dev", "run", "lib/modules", "etc/hostname", "etc/hosts", "etc/machine-id", "etc/resolv.conf"}

// TestTreeInsideIsTheImages pulls an image from a registry and compares what a
// program in the sandbox sees with what umoci unpacks (case 40).
func TestTreeInsideIsTheImages(t *testing.T) {
	addr, requests := registry(t)
	ref := addr + "/team/layers:1"
	if out, err := exec.Command("skopeo", "copy", "--quiet", "--dest-tls-verify=false", "oci:"+layout.Ref(testimage.Layers), "docker://"+ref).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	before, asked := storedLayers(t), requests()
	if r := cli(t, "image", "pull", ref, "--name", "tls"); r.code == 0 || !strings.Contains(r.stderr, "without TLS") {
		t.Errorf("pull without TLS and without --plain-http: %+v", r)
	}
	if r := cli(t, "run", "--image", ref, "--", "true"); r.code != 125 {
		t.Errorf("run of an image that is not registered: %+v", r)
	}
	if _, err := server.Client.CreateSandbox(t.Context(), client.CreateSandbox{Image: ref}); skerry.CodeOf(err) != skerry.CodeNotFound {
		t.Errorf("create with an image that is not registered: %v", err)
	}
	if n := requests() - asked; n != 0 {
		t.Errorf("a create made %d requests to the registry", n)
	}
	img := decode[skerry.Image](t, mustCLI(t, "image", "pull", ref, "--name", "layers", "--plain-http"))
	if img.Status != skerry.ImageReady || img.LayerCount != 5 {
		t.Errorf("image %+v", img)
	}
	if n := storedLayers(t) - before; n != 4 {
		t.Errorf("the pull stored %d layers, want 4: one is the image %s", n, testimage.Shell)
	}

	root, err := layout.Unpack(t.Context(), testimage.Layers, filepath.Join(t.TempDir(), "bundle"))
	if err != nil {
		t.Fatal(err)
	}
	probe := filepath.Join(tempDir, "probe")
	want, err := exec.Command(probe, append([]string{"tree", root}, platformPlaces...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	sb := create(t, clientCreate("layers"))
	got := runOutput(t, sb, append([]string{"probe", "tree", "/"}, platformPlaces...)...)
	if d := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); d != "" {
		t.Errorf("the sandbox (+) differs from the image (-):\n%s", d)
	}
}

// storedLayers is the number of layers in the content store.
func storedLayers(t *testing.T) int {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(server.Data(), "images", "layers", "*.img"))
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// runOutput streams the output of a program that root runs and that must
// succeed.
func runOutput(t *testing.T, sb sandbox, argv ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	r, err := sb.Run(t.Context(), client.RunOptions{Argv: argv, User: "root", Stdout: &stdout, Stderr: &stderr})
	if err != nil || r.ExitCode == nil || *r.ExitCode != 0 {
		t.Fatalf("%q: %+v, %v\n%s", argv, r, err, stderr.String())
	}
	return stdout.String()
}

// TestImageWithoutAnything uses an image that is one program: no shell, no
// /etc, no /tmp.
func TestImageWithoutAnything(t *testing.T) {
	sb := create(t, clientCreate(testimage.Static))
	if got := sb.mustRoot(t, "/probe", "argv", "x"); got != "[\"x\"]\n" {
		t.Errorf("got %q", got)
	}
	if r := sb.root(t, "/bin/sh", "-c", "true"); r.ExitCode != 127 {
		t.Errorf("a shell that is not there: %+v", r)
	}
	id := decode[identity](t, sb.mustRoot(t, "/probe", "identity"))
	if id.Hostname == "" || len(id.MachineID) != 32 {
		t.Errorf("identity %+v", id)
	}
	if err := sb.Upload(t.Context(), "/made/up/file", 0o600, strings.NewReader("content")); err != nil {
		t.Error(err)
	}
	var b bytes.Buffer
	if _, err := sb.Download(t.Context(), "/made/up/file", &b); err != nil || b.String() != "content" {
		t.Errorf("download: %q, %v", b.String(), err)
	}
}

// TestDeleteImage deletes an image that a sandbox uses and one that none does.
func TestDeleteImage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "static.tar")
	if err := layout.Archive(t.Context(), testimage.Static, "docker-archive", file); err != nil {
		t.Fatal(err)
	}
	mustCLI(t, "image", "import", file, "--name", "short-lived")
	mustCLI(t, "image", "delete", "short-lived")
	if r := cli(t, "image", "get", "short-lived"); r.code != 3 {
		t.Errorf("get after delete: %+v", r)
	}
	if got := mustCLI(t, "run", "--image", testimage.Static, "--", "/probe", "argv"); got != "[]\n" {
		t.Errorf("an image with the same layers: %q", got)
	}
}

func TestImportRefuses(t *testing.T) {
	dir := t.TempDir()
	garbage := filepath.Join(dir, "garbage")
	if err := os.WriteFile(garbage, []byte(strings.Repeat("no archive ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	whole := filepath.Join(dir, "whole.tar")
	if err := layout.Archive(t.Context(), testimage.Static, "oci-archive", whole); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	cut := filepath.Join(dir, "cut.tar")
	if err := os.WriteFile(cut, data[:len(data)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{garbage, cut} {
		r := cli(t, "image", "import", file, "--name", "broken")
		if r.code == 0 || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%s: %+v", filepath.Base(file), r)
		}
		t.Logf("%s", r.stderr)
		cli(t, "image", "delete", "broken")
	}
}
