package scenario

import (
	"context"
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

// changeEverything changes an image's files in every way that a layer has to
// tell of.
const changeEverything = `set -e
rm /bin/zcat                                    # a file of the image
rm -rf /usr/local; mkdir -m 2750 /usr/local; echo new >/usr/local/inside  # a directory made again
rm /bin/yes; mkdir /bin/yes; echo x >/bin/yes/x # a directory for a file
mv /etc/group /etc/groups; echo more >>/etc/groups
chmod 711 /home/app; chown 3000000000:3000000001 /home/app
mkdir -p /var /srv/empty /srv/links /srv/deep/er/still; cd /srv
echo one >hard-1; ln hard-1 hard-2; ln hard-1 links/hard-3
ln -s /etc/passwd link-absolute; ln -s no/such/place link-dangling
echo x >setuid; chmod 6755 setuid; echo x >nobody; chmod 0 nobody
chmod 3777 empty; mkfifo -m 640 fifo; mknod null c 1 3; mknod loop b 7 9
echo x >xattr; probe xattr xattr user.comment 'two words'; probe xattr deep user.of-directory x
truncate -s 16M sparse; echo end >>sparse
touch "$(printf '\377\376-not-utf8')" 'with space' "$(printf 'new\nline')" -- -dash .wh-alike
touch "$(printf '%0255d' 0)"; touch -d '1999-12-31 23:59:59' old
`

// changeMore changes what a capture has brought. It leaves hard links alone, as a
// sandbox goes on to count those that are gone from a lower layer (overlayfs).
const changeMore = `set -e
cd /srv
rm fifo xattr; rm -rf empty; echo a file now >empty
rm -rf deep; mkdir deep; echo new >deep/new
chmod 600 nobody; mv old older; echo changed >/usr/local/inside
touch /etc/group # what was removed before
`

// notCaptured is what changes while the tree is looked at, and what is no part
// of an image.
var notCaptured = append([]string{"var/count", "tmp/count.log", "tmp/writes"}, platformPlaces...)

func (s sandbox) tree(t *testing.T) string {
	t.Helper()
	return sorted(runOutput(t, s, append([]string{"probe", "tree", "/"}, notCaptured...)...))
}

// wantTree fails unless a tree is what it should be.
func wantTree(t *testing.T, what, got, want string) {
	t.Helper()
	if d := cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")); d != "" {
		t.Errorf("%s (+) differs from the sandbox (-):\n%s", what, d)
	}
}

// TestCapture makes images of a sandbox whose processes write on, and of a
// sandbox of such an image, and has other tools look at them.
func TestCapture(t *testing.T) {
	source := create(t, client.CreateSandbox{Image: testimage.Shell, Name: "wright", Resources: small()})
	source.shell(t, changeEverything)
	want := source.tree(t)
	c := source.startCounter(t, "1ms")
	source.shell(t, "setsid sh -c 'while :; do mkdir -p /tmp/writes/d; echo x >/tmp/writes/d/f; rm -rf /tmp/writes/d; done' >/dev/null 2>&1 &")
	img := decode[skerry.Image](t, mustCLI(t, "sandbox", "capture", "wright", "--name", "team/env:1"))
	t.Cleanup(func() { forgetImage(t, img.ID) })
	if img.Status != skerry.ImageReady || img.LayerCount != 2 || img.Anonymous || img.SourceSandbox != source.ID {
		t.Errorf("image %+v", img)
	}
	c.check(t, source)
	remove(t, source.ID)

	second := keep(t, client.CreateSandbox{Image: "team/env:1"})
	wantTree(t, "a sandbox of the capture", second.tree(t), want)
	second.shell(t, changeMore)
	want = second.tree(t)
	// A stopped sandbox can be captured, too.
	second.operate(t, skerry.Stop)
	img2, err := server.Client.CaptureImage(t.Context(), string(second.ID), skerry.CaptureRequest{Name: "team/env:2"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { forgetImage(t, img2.ID) })
	if img2, err = server.Client.WaitImage(t.Context(), "team/env:2", patience, nil); err != nil || img2.LayerCount != 3 {
		t.Fatalf("%+v, %v", img2, err)
	}
	remove(t, second.ID)

	addr, _ := registry(t)
	ref := addr + "/team/env:2"
	if r := cli(t, "image", "push", "team/env:2", ref); r.code == 0 || !strings.Contains(r.stderr, "TLS") {
		t.Errorf("push without TLS and without --plain-http: %+v", r)
	}
	if pushed := decode[skerry.Image](t, mustCLI(t, "image", "push", "team/env:2", ref, "--plain-http")); pushed.Push == nil || pushed.Push.Status != skerry.ImageReady || pushed.Push.Digest == "" {
		t.Errorf("pushed %+v", pushed)
	}
	dir := t.TempDir()
	run(t, "skopeo", "copy", "--quiet", "--src-tls-verify=false", "docker://"+ref, "oci:"+filepath.Join(dir, "oci")+":env")
	run(t, "umoci", "unpack", "--image", filepath.Join(dir, "oci")+":env", filepath.Join(dir, "bundle"))
	unpacked := run(t, filepath.Join(tempDir, "probe"), append([]string{"tree", filepath.Join(dir, "bundle", "rootfs")}, notCaptured...)...)
	wantTree(t, "what another tool unpacks", sorted(unpacked), want)

	buildah := []string{"--root", filepath.Join(dir, "storage"), "--runroot", filepath.Join(dir, "run"), "--storage-driver", "vfs"}
	container := strings.TrimSpace(run(t, "buildah", append(buildah, "from", "--tls-verify=false", "docker://"+ref)...))
	t.Cleanup(func() { exec.Command("buildah", append(buildah, "rm", container)...).Run() })
	ran := run(t, "buildah", append(buildah, "run", "--isolation", "chroot", "--user", "root", container, "--", "sh", "-c", "cat /srv/hard-1 /srv/deep/new /usr/local/inside; echo $GREETING")...)
	if ran != "one\nnew\nchanged\ntwo words and a line\n" {
		t.Errorf("under another tool: %q", ran)
	}

	pulled := decode[skerry.Image](t, mustCLI(t, "image", "pull", ref, "--name", "again", "--plain-http"))
	t.Cleanup(func() { forgetImage(t, pulled.ID) })
	again := create(t, client.CreateSandbox{Image: "again", Resources: small()})
	wantTree(t, "a sandbox of what was pushed and pulled", again.tree(t), want)
}

// run runs a program of the host that must succeed, and returns its output.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s%s", name, args, err, out, stderr.String())
	}
	return string(out)
}

// forgetImage deletes an image that may be deleted already.
func forgetImage(t *testing.T, id skerry.ImageID) {
	t.Helper()
	err := server.Client.DeleteImage(context.Background(), string(id))
	if code := skerry.CodeOf(err); err != nil && code != skerry.CodeNotFound && code != skerry.CodeGone {
		t.Errorf("delete image %s: %v", id, err)
	}
}

// TestAnonymousImages is the idle window of images without a name.
func TestAnonymousImages(t *testing.T) {
	sb := create(t, client.CreateSandbox{Image: testimage.Shell, Resources: small()})
	for _, tt := range []struct{ body, field string }{
		{`{"name":"n","idle_expiry_seconds":60}`, "idle_expiry_seconds"},
		{`{"name":"n","idle_expiry_seconds":-1}`, "idle_expiry_seconds"},
		{`{"idle_expiry_seconds":0}`, "idle_expiry_seconds"},
		{`{"idle_expiry_seconds":-2}`, "idle_expiry_seconds"},
		{`{"idle_expiry_seconds":604801}`, "idle_expiry_seconds"},
		{`{"name":"snap-x"}`, "name"},
	} {
		status, text := call(t, "POST", "/v2/sandboxes/"+string(sb.ID)+"/capture", tt.body)
		problem := decode[struct {
			Code   skerry.Code
			Errors []struct{ Field string }
		}](t, text)
		if status != 400 || problem.Code != skerry.CodeInvalid || len(problem.Errors) != 1 || problem.Errors[0].Field != tt.field {
			t.Errorf("%s: %d %s", tt.body, status, text)
		}
	}
	if r := cli(t, "sandbox", "capture", string(sb.ID), "--name", testimage.Shell); r.code != 4 {
		t.Errorf("the name of another image: %+v", r)
	}
	longest := decode[skerry.Image](t, mustCLI(t, "sandbox", "capture", string(sb.ID)))
	t.Cleanup(func() { forgetImage(t, longest.ID) })
	if !longest.Anonymous || longest.IdleExpirySeconds != 7*86400 || longest.ExpiresAt == nil {
		t.Errorf("without a window: %+v", longest)
	}
	user := create(t, client.CreateSandbox{Image: string(longest.ID), Resources: small()})
	used, err := server.Client.Image(t.Context(), string(longest.ID))
	if err != nil || !used.ExpiresAt.After(*longest.ExpiresAt) {
		t.Errorf("a create does not move %v: %v, %v", longest.ExpiresAt, used.ExpiresAt, err)
	}
	remove(t, user.ID)
	short := decode[skerry.Image](t, mustCLI(t, "sandbox", "capture", string(sb.ID), "--idle-expiry-seconds", "1"))
	eventually(t, 30*time.Second, func() string {
		_, err := server.Client.Image(t.Context(), string(short.ID))
		if code := skerry.CodeOf(err); code != skerry.CodeNotFound && code != skerry.CodeGone {
			return "the image is still there"
		}
		return ""
	})
	if _, err := server.Client.CreateSandbox(t.Context(), client.CreateSandbox{Image: string(short.ID)}); skerry.CodeOf(err) != skerry.CodeNotFound && skerry.CodeOf(err) != skerry.CodeGone {
		t.Errorf("create from a deleted image: %v", err)
	}
}
