package toolbox_test

import (
	"archive/tar"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"skerry.dev/skerry"
)

// Case 17: what was uploaded is there, whole, with its mode and owner.
func TestUploadIsThere(t *testing.T) {
	needRoot(t)
	b := newBox(t, asTester)
	for _, size := range []int{0, 1, 4095, 4096, 18_433, 65_536, 1<<20 - 1, 1<<20 + 1, 64 << 20} {
		data := make([]byte, size)
		rand.Read(data)
		path := filepath.Join(b.home, "new", fmt.Sprint(size))
		call[any](b, 200, "PUT", "/files/content?mode=640&path="+url.QueryEscape(path), data)
		got := b.execute(skerry.ExecuteRequest{Argv: sh("sha256sum <" + path + "; stat -c '%s %a %u' " + path).Argv})
		if want := fmt.Sprintf("%x  -\n%d 640 %d\n", sha256.Sum256(data), size, testerID); got.Stdout != want {
			t.Errorf("size %d: %q, want %q; %s", size, got.Stdout, want, got.Stderr)
		}
		status, text := b.do("GET", "/files/download?path="+url.QueryEscape(path), nil)
		if status != 200 || !bytes.Equal(text, data) {
			t.Errorf("size %d: downloaded %d bytes, status %d", size, len(text), status)
		}
	}
	noTemp(t, filepath.Join(b.home, "new"))
}

func noTemp(t *testing.T, dir string) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, ".skerry-*"))
	if err != nil || len(names) > 0 {
		t.Errorf("left behind: %v, %v", names, err)
	}
}

// Case 17: a full disk is an error, and no half file.
func TestUploadToFullDisk(t *testing.T) {
	needRoot(t)
	b := newBox(t, asTester)
	disk := filepath.Join(b.home, "disk")
	if err := os.Mkdir(disk, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=1m,mode=777"); err != nil {
		t.Skipf("needs to mount a tmpfs: %v", err)
	}
	defer syscall.Unmount(disk, syscall.MNT_DETACH)
	old := filepath.Join(disk, "file")
	if err := os.WriteFile(old, []byte("old"), 0o666); err != nil {
		t.Fatal(err)
	}
	b.wantError(507, skerry.ToolboxNoSpace, "PUT", "/files/content?path="+old, make([]byte, 2<<20))
	if text, _ := os.ReadFile(old); string(text) != "old" {
		t.Errorf("the old file holds %d bytes", len(text))
	}
	noTemp(t, disk)
	archive := tarOf(t, tar.Header{Name: "big", Mode: 0o644, Size: 2 << 20})
	e := b.wantError(507, skerry.ToolboxNoSpace, "PUT", "/files/archive?path="+disk, archive)
	if !strings.Contains(e.Message, `"big"`) {
		t.Errorf("message %q does not name the entry", e.Message)
	}
	noTemp(t, disk)
}

// An upload that breaks off leaves the old file.
func TestUploadBreaksOff(t *testing.T) {
	b := newBox(t, nil)
	path := filepath.Join(b.home, "file")
	os.WriteFile(path, []byte("old"), 0o600)
	reader, writer := io.Pipe()
	req, _ := http.NewRequest("PUT", b.url+"/files/content?path="+path, reader)
	go func() {
		writer.Write(make([]byte, 1<<20))
		writer.CloseWithError(io.ErrClosedPipe)
	}()
	if resp, err := b.client.Do(req); err == nil {
		resp.Body.Close()
		t.Errorf("status %d", resp.StatusCode)
	}
	eventually(t, "the temporary file is removed", func() bool {
		names, _ := filepath.Glob(filepath.Join(b.home, ".skerry-*"))
		return len(names) == 0
	})
	if text, _ := os.ReadFile(path); string(text) != "old" {
		t.Errorf("the old file holds %d bytes", len(text))
	}
}

// Case 20: no link that a user plants gets root to write or read for him.
func TestPlantedLinks(t *testing.T) {
	needRoot(t)
	b := newBox(t, asTester)
	secret := filepath.Join(t.TempDir(), "secret")
	os.WriteFile(secret, []byte("secret"), 0o600)
	closed := filepath.Dir(secret)
	os.Chmod(closed, 0o755)
	link := filepath.Join(b.home, "link")
	b.execute(skerry.ExecuteRequest{Argv: []string{"ln", "-s", secret, link}})
	b.execute(skerry.ExecuteRequest{Argv: []string{"ln", "-s", closed, link + "dir"}})
	b.wantError(403, skerry.ToolboxAccessDenied, "PUT", "/files/content?path="+link, []byte("evil"))
	b.wantError(403, skerry.ToolboxAccessDenied, "PUT", "/files/content?path="+link+"dir/new", []byte("evil"))
	b.wantError(403, skerry.ToolboxAccessDenied, "GET", "/files/download?path="+link, nil)
	b.wantError(403, skerry.ToolboxAccessDenied, "POST", "/files/permissions?mode=777&path="+link, nil)
	b.wantError(403, skerry.ToolboxAccessDenied, "POST", "/files/permissions?owner=tester&path="+link, nil)
	b.wantError(403, skerry.ToolboxAccessDenied, "DELETE", "/files?path="+secret, nil)
	b.wantError(403, skerry.ToolboxAccessDenied, "POST", "/files/move?source="+secret+"&destination=x", nil)
	b.wantError(403, skerry.ToolboxAccessDenied, "POST", "/files/folder?path="+closed+"/x", nil)
	b.wantError(403, skerry.ToolboxAccessDenied, "PUT", "/files/archive?path="+link+"dir", tarOf(t, tar.Header{Name: "x", Mode: 0o644}))
	if text, err := os.ReadFile(secret); string(text) != "secret" || err != nil {
		t.Errorf("the secret is %q", text)
	}
	// Its own target, through its own link, is fine.
	b.execute(skerry.ExecuteRequest{Command: "echo old >target; chmod 600 target; ln -s target own"})
	call[any](b, 200, "PUT", "/files/content?path=own", []byte("new"))
	got := b.execute(skerry.ExecuteRequest{Argv: sh("cat target; readlink own; stat -c %a target").Argv})
	if got.Stdout != "newtarget\n600\n" {
		t.Errorf("own link: %q", got.Stdout)
	}
}

func tarOf(t *testing.T, headers ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range headers {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(bytes.Repeat([]byte("x"), int(h.Size))); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// Case 20: hostile archives stay in their directory, and the error names the
// entry.
func TestHostileArchives(t *testing.T) {
	b := newBox(t, nil)
	outside := filepath.Join(b.home, "outside")
	os.Mkdir(outside, 0o755)
	os.WriteFile(filepath.Join(outside, "kept"), []byte("kept"), 0o644)
	link := func(name, target string) tar.Header {
		return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}
	}
	file := func(name string) tar.Header { return tar.Header{Name: name, Mode: 0o644, Size: 1} }
	for name, test := range map[string]struct {
		entries []tar.Header
		blame   string
	}{
		"absolute link":          {[]tar.Header{link("l", outside), file("l/x")}, "l/x"},
		"relative link":          {[]tar.Header{link("l", "../outside"), file("l/x")}, "l/x"},
		"link in a link":         {[]tar.Header{link("a", "."), link("b", "a/../../outside"), file("b/x")}, "b/x"},
		"directory through link": {[]tar.Header{link("l", "../outside"), {Typeflag: tar.TypeDir, Name: "l/d", Mode: 0o755}}, "l/d"},
		"parent":                 {[]tar.Header{file("../outside/x")}, "../outside/x"},
		"inner parent":           {[]tar.Header{file("a/../../outside/x")}, "a/../../outside/x"},
		"absolute":               {[]tar.Header{file(outside + "/x")}, outside + "/x"},
		"hard link":              {[]tar.Header{{Typeflag: tar.TypeLink, Name: "h", Linkname: "../outside/kept"}}, "h"},
		"hard link absolute":     {[]tar.Header{{Typeflag: tar.TypeLink, Name: "h", Linkname: outside + "/kept"}}, "h"},
		"hard link by link":      {[]tar.Header{link("l", "../outside"), {Typeflag: tar.TypeLink, Name: "h", Linkname: "l/kept"}}, "h"},
		"hard link to link":      {[]tar.Header{link("l", "../outside/kept"), {Typeflag: tar.TypeLink, Name: "h", Linkname: "l"}}, "h"},
		"link mode":              {[]tar.Header{link("l", "../outside"), {Typeflag: tar.TypeDir, Name: "l", Mode: 0o700}}, "l"},
		"device":                 {[]tar.Header{{Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3}}, "null"},
		"fifo":                   {[]tar.Header{{Typeflag: tar.TypeFifo, Name: "fifo"}}, "fifo"},
	} {
		t.Run(name, func(t *testing.T) {
			target := filepath.Join(b.home, "target")
			defer os.RemoveAll(target)
			status, text := b.do("PUT", "/files/archive?path="+target, tarOf(t, test.entries...))
			if status != 400 && status != 409 || !strings.Contains(string(text), "entry \\\""+test.blame+"\\\"") {
				t.Errorf("status %d, %s; want the entry %q", status, text, test.blame)
			}
			entries, _ := os.ReadDir(outside)
			kept, err := os.Stat(filepath.Join(outside, "kept"))
			info, dirErr := os.Stat(outside)
			if len(entries) != 1 || err != nil || kept.Sys().(*syscall.Stat_t).Nlink != 1 || dirErr != nil || info.Mode().Perm() != 0o755 {
				t.Errorf("something happened outside: %v", entries)
			}
			noTemp(t, target)
		})
	}
	// A file replaces a planted link, it does not follow it.
	target := filepath.Join(b.home, "target")
	call[any](b, 204, "PUT", "/files/archive?path="+target, tarOf(t, link("l", outside+"/kept"), file("l")))
	if text, _ := os.ReadFile(filepath.Join(outside, "kept")); string(text) != "kept" {
		t.Errorf("written through a link: %q", text)
	}
	status, _ := b.do("PUT", "/files/archive?path="+target, []byte(strings.Repeat("no tar", 200)))
	if status != 400 {
		t.Errorf("status %d for what is no archive", status)
	}
}

// A tree comes back as it was: links, modes, times, owners.
func TestArchiveRoundTrip(t *testing.T) {
	b := newBox(t, nil)
	b.execute(skerry.ExecuteRequest{Command: `mkdir -p src/dir/ro src/empty && cd src && echo text >dir/file && chmod 4750 dir/file &&
		ln dir/file dir/hard && ln -s file dir/rel && ln -s ../dir/file empty/up && ln -s /etc/passwd dir/abs && ln -s nowhere dir/dangling &&
		echo x >dir/ro/inner && chmod 555 dir/ro && touch -d '2001-02-03 04:05:06' dir/file && touch -d '2002-03-04 05:06:07' dir && mkfifo fifo
		[ "$(id -u)" = 0 ] && chown -h 1234:2345 dir/dangling dir/ro/inner; true`})
	status, archive := b.do("GET", "/files/archive?path=src", nil)
	if status != 200 {
		t.Fatalf("status %d: %s", status, archive)
	}
	call[any](b, 204, "PUT", "/files/archive?path=copy", archive)
	const list = `find . ! -name fifo ! -path . -printf '%p %y %m %U %G %n %l %Ts\n' | sort; cat dir/file`
	want := b.execute(skerry.ExecuteRequest{Command: list, Cwd: "src"}).Result
	got := b.execute(skerry.ExecuteRequest{Command: list, Cwd: "copy"}).Result
	if diff := cmp.Diff(want, got); diff != "" || !strings.Contains(want, "dir/rel l 777") {
		t.Errorf("%s\n%s", diff, want)
	}
	os.Chmod(filepath.Join(b.home, "src/dir/ro"), 0o755)
	os.Chmod(filepath.Join(b.home, "copy/dir/ro"), 0o755)
	b.wantError(404, skerry.ToolboxFileNotFound, "GET", "/files/archive?path=none", nil)
	b.wantError(400, skerry.ToolboxInvalidPath, "GET", "/files/archive?path=src/dir/file", nil)
}

func TestFileOperations(t *testing.T) {
	b := newBox(t, nil)
	call[any](b, 201, "POST", "/files/folder?path=d/e&mode=750", nil)
	call[any](b, 201, "POST", "/files/folder?path=d/e&mode=750", nil)
	call[any](b, 200, "PUT", "/files/content?path=d/e/f", []byte("hello"))
	info := call[skerry.FileInfo](b, 200, "GET", "/files/info?path=d/e/f", nil)
	if info.Name != "f" || info.Path != b.home+"/d/e/f" || info.Size != 5 || info.Permissions != "0644" || info.Owner != "me" || info.IsDir || time.Since(info.ModifiedAt) > time.Hour {
		t.Errorf("info %+v", info)
	}
	os.Symlink("e", filepath.Join(b.home, "d", "link"))
	if info := call[skerry.FileInfo](b, 200, "GET", "/files/info?path=d/link", nil); !info.IsDir || info.LinkTarget != "e" {
		t.Errorf("info of a link %+v", info)
	}
	names := func(path string) (names []string) {
		for _, info := range call[[]skerry.FileInfo](b, 200, "GET", path, nil) {
			rel, _ := filepath.Rel(b.home, info.Path)
			names = append(names, rel)
		}
		return names
	}
	for path, want := range map[string][]string{"/files": {"d"}, "/files?path=d": {"d/e", "d/link"}, "/files?depth=3": {"d", "d/e", "d/e/f", "d/link"}} {
		if diff := cmp.Diff(want, names(path)); diff != "" {
			t.Errorf("%s: %s", path, diff)
		}
	}
	call[any](b, 200, "POST", "/files/permissions?path=d/e/f&mode=600", nil)
	call[any](b, 200, "PUT", "/files/content?path=d/e/f", []byte("again"))
	if info := call[skerry.FileInfo](b, 200, "GET", "/files/info?path=d/e/f", nil); info.Permissions != "0600" {
		t.Errorf("an overwritten file has mode %s", info.Permissions)
	}
	call[any](b, 200, "POST", "/files/move?source=d/e/f&destination=g", nil)
	call[any](b, 200, "POST", "/files/move?source=g&destination=d", nil) // into the directory
	call[any](b, 200, "PUT", "/files/content?path=h", []byte("h"))
	b.wantError(409, skerry.ToolboxFileExists, "POST", "/files/move?source=h&destination=d/g", nil)
	b.wantError(409, skerry.ToolboxFileExists, "DELETE", "/files?path=d", nil)
	call[any](b, 204, "DELETE", "/files?path=d&recursive=true", nil)
	for method, path := range map[string]string{"GET": "/files/info?path=d", "DELETE": "/files?path=d", "POST": "/files/move?source=d&destination=x"} {
		b.wantError(404, skerry.ToolboxFileNotFound, method, path, nil)
	}
	for _, path := range []string{"/files/info?path=", "/files/info?path=a%00b", "/files/download?path=" + b.home, "/files/download?path=/dev/zero",
		"/files/info?path=h/x"} {
		b.wantError(400, skerry.ToolboxInvalidPath, "GET", path, nil)
	}
	b.wantError(400, skerry.ToolboxInvalidPath, "PUT", "/files/content?path=h&mode=9", nil)
	b.wantError(400, skerry.ToolboxInvalidPath, "PUT", "/files/content?path=/dev/null", []byte("x"))
	b.wantError(400, skerry.ToolboxInvalidPath, "DELETE", "/files?path=/&recursive=true", nil)
	status, text := b.do("GET", "/files/download?path=/proc/self/status", nil)
	if status != 200 || !strings.Contains(string(text), "VmRSS") {
		t.Errorf("a file of /proc: %d, %q", status, text)
	}
}

func TestDownloadRange(t *testing.T) {
	b := newBox(t, nil)
	os.WriteFile(filepath.Join(b.home, "f"), []byte("0123456789"), 0o644)
	req, _ := http.NewRequest("GET", b.url+"/files/download?path=f", nil)
	req.Header.Set("Range", "bytes=3-5")
	resp, err := b.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != 206 || string(text) != "345" || resp.ContentLength != 3 {
		t.Errorf("status %d, %q", resp.StatusCode, text)
	}
}

func TestFormUploads(t *testing.T) {
	b := newBox(t, nil)
	post := func(path string, fields ...string) (int, []byte) {
		var body bytes.Buffer
		form := multipart.NewWriter(&body)
		for i := 0; i < len(fields); i += 2 {
			if name := fields[i]; strings.HasSuffix(name, "file") {
				part, _ := form.CreateFormFile(name, "upload.txt")
				io.WriteString(part, fields[i+1])
			} else {
				form.WriteField(name, fields[i+1])
			}
		}
		form.Close()
		req, _ := http.NewRequest("POST", b.url+path, &body)
		req.Header.Set("Content-Type", form.FormDataContentType())
		resp, err := b.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, text
	}
	if status, text := post("/files/upload-v2?path=a/b", "file", "one"); status != 200 {
		t.Errorf("status %d: %s", status, text)
	}
	status, text := post("/files/bulk-upload", "files[0].path", "m/0", "files[0].file", "zero", "files[1].path", "a/b/c", "files[1].file", "no",
		"files[2].path", "m/2", "files[2].file", "two")
	if status != 200 || strings.Count(string(text), `"bytes"`) != 2 || !strings.Contains(string(text), "a/b/c") {
		t.Errorf("status %d: %s", status, text)
	}
	for name, want := range map[string]string{"a/b": "one", "m/0": "zero", "m/2": "two"} {
		if got, _ := os.ReadFile(filepath.Join(b.home, name)); string(got) != want {
			t.Errorf("%s holds %q, want %q", name, got, want)
		}
	}
	resp, err := b.client.Post(b.url+"/files/bulk-download", "application/json", strings.NewReader(`{"paths":["m/0","none","m/2"]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	_, params, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	parts := multipart.NewReader(resp.Body, params["boundary"])
	var got []string
	for {
		part, err := parts.NextPart()
		if err != nil {
			break
		}
		text, _ := io.ReadAll(part)
		if part.FormName() == "error" {
			text = text[:0]
		}
		got = append(got, part.FormName()+"="+string(text))
	}
	if diff := cmp.Diff([]string{"file=zero", "error=", "file=two"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestSystem(t *testing.T) {
	b := newBox(t, nil)
	for path, want := range map[string]string{"/version": `{"version":"test"}`, "/user-home-dir": `{"dir":"` + b.home + `"}`, "/work-dir": `{"dir":"` + b.home + `"}`} {
		if _, text := b.do("GET", path, nil); strings.TrimSpace(string(text)) != want {
			t.Errorf("%s: %s, want %s", path, text, want)
		}
	}
	m := call[map[string]any](b, 200, "GET", "/system/metrics", nil)
	for _, name := range []string{"cpuCount", "memTotal", "memUsed", "diskTotal", "diskUsed", "timestampUnix"} {
		if v, _ := m[name].(float64); v <= 0 {
			t.Errorf("%s is %v", name, m[name])
		}
	}
}
