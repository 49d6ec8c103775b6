package toolbox

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"path/filepath"
	"strconv"
	"strings"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/guest/toolbox/file"
)

// maxPathBytes bounds a path in a form field.
const maxPathBytes = 8 << 10

// uploadedFile is the answer to an upload: Daytona's UploadedFile, and the size
// (ours).
type uploadedFile struct {
	Name  string `json:"name"`
	Path  string `json:"path"`
	Type  string `json:"type"`
	Bytes int64  `json:"bytes"`
}

// body is a request's body. It marks errors of the connection, so that they are
// not taken for those of a file.
type body struct{ r io.Reader }

func (b body) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = toolboxError(http.StatusBadRequest, skerry.ToolboxInvalidBody, "upload ended early: %v", err)
	}
	return n, err
}

// putFile is PUT /files/content: the body is the file.
func putFile(box *sandbox, w http.ResponseWriter, r *http.Request) error {
	path, err := box.pathOf(r, "path")
	if err != nil {
		return err
	}
	return box.store(w, path, permissionsOf(r), r.Body)
}

func (b *sandbox) store(w http.ResponseWriter, path string, p file.Permissions, r io.Reader) error {
	n, err := b.files.Write(path, p, body{r})
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, uploadedFile{Name: filepath.Base(path), Path: path, Type: "file", Bytes: n})
}

// uploadFile is POST /files/upload-v2: the first file of a multipart form.
func uploadFile(box *sandbox, w http.ResponseWriter, r *http.Request) error {
	path, err := box.pathOf(r, "path")
	if err != nil {
		return err
	}
	form, err := formOf(r)
	if err != nil {
		return err
	}
	for {
		part, err := form.NextPart()
		if err != nil {
			return toolboxError(http.StatusBadRequest, skerry.ToolboxInvalidBody, "form has no file: %v", err)
		}
		if part.FileName() != "" || part.FormName() == "file" {
			return box.store(w, path, permissionsOf(r), part)
		}
	}
}

func formOf(r *http.Request) (*multipart.Reader, error) {
	form, err := r.MultipartReader()
	if err != nil {
		return nil, toolboxError(http.StatusBadRequest, skerry.ToolboxInvalidBody, "request body: %v", err)
	}
	return form, nil
}

// uploadFiles is POST /files/bulk-upload: pairs of fields "x.path" and "x.file",
// in this order. A file that fails does not stop the others.
func uploadFiles(box *sandbox, w http.ResponseWriter, r *http.Request) error {
	type result struct {
		Path  string `json:"path"`
		Bytes int64  `json:"bytes"`
	}
	answer := struct {
		Files  []result `json:"files"`
		Errors []string `json:"errors"`
	}{[]result{}, []string{}}
	form, err := formOf(r)
	if err != nil {
		return err
	}
	paths := map[string]string{}
	for {
		part, err := form.NextPart()
		if errors.Is(err, io.EOF) {
			return writeJSON(w, http.StatusOK, answer)
		}
		if err != nil {
			return toolboxError(http.StatusBadRequest, skerry.ToolboxInvalidBody, "form: %v", err)
		}
		key, kind := formKey(part)
		switch {
		case kind == "path" && len(paths) < 1: // the files come in order: one is open
			text, err := io.ReadAll(io.LimitReader(part, maxPathBytes+1))
			if err != nil || len(text) > maxPathBytes {
				return toolboxError(http.StatusBadRequest, skerry.ToolboxInvalidPath, "form field %.64q is no path", key)
			}
			paths[key] = string(text)
		case kind == "file":
			name, known := paths[key]
			delete(paths, key)
			if !known {
				name = part.FileName()
			}
			path, n, err := box.storePart(name, part)
			if err != nil {
				answer.Errors = append(answer.Errors, fmt.Sprintf("%s: %v", name, err))
			} else {
				answer.Files = append(answer.Files, result{path, n})
			}
		default:
			return toolboxError(http.StatusBadRequest, skerry.ToolboxInvalidBody,
				"form field %.64q: expected pairs of .path and .file", part.FormName())
		}
		if len(answer.Errors)+len(answer.Files) > maxBulk {
			return toolboxError(http.StatusRequestEntityTooLarge, skerry.ToolboxTooLarge, "more than %d files", maxBulk)
		}
	}
}

// maxBulk bounds the files of one bulk request.
const maxBulk = 10_000

// formKey splits "files[0].path".
func formKey(part *multipart.Part) (key, kind string) {
	name := part.FormName()
	i := strings.LastIndexByte(name, '.')
	if i < 0 {
		return name, ""
	}
	return name[:i], name[i+1:]
}

func (b *sandbox) storePart(name string, r io.Reader) (path string, n int64, err error) {
	path, err = b.files.Abs(name)
	if err != nil {
		return "", 0, err
	}
	n, err = b.files.Write(path, file.Permissions{}, body{r})
	return path, n, err
}

// downloadFile is GET /files/download, with Range and conditional requests.
func downloadFile(box *sandbox, w http.ResponseWriter, r *http.Request) error {
	path, err := box.pathOf(r, "path")
	if err != nil {
		return err
	}
	f, info, err := box.files.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if info.IsDir() {
		return toolboxError(http.StatusBadRequest, skerry.ToolboxInvalidPath, "%s is a directory; use /files/archive", path)
	}
	header := w.Header()
	header.Set("Content-Type", "application/octet-stream")
	header.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": info.Name()}))
	if info.Size() == 0 { // or a file of /proc, whose size is not known
		if _, err := io.Copy(w, f); err != nil {
			return fmt.Errorf("%w: %w", errAborted, err)
		}
		return nil
	}
	http.ServeContent(w, r, "", info.ModTime(), f)
	return nil
}

// downloadFiles is POST /files/bulk-download: a multipart answer with a part
// "file" or "error" for each path.
func downloadFiles(box *sandbox, w http.ResponseWriter, r *http.Request) error {
	var req struct {
		Paths []string `json:"paths"`
	}
	if err := readJSON(w, r, maxBody, &req); err != nil {
		return err
	}
	if len(req.Paths) == 0 || len(req.Paths) > maxBulk {
		return toolboxError(http.StatusBadRequest, skerry.ToolboxInvalidBody, "paths: 1 to %d are allowed", maxBulk)
	}
	form := multipart.NewWriter(w)
	w.Header().Set("Content-Type", form.FormDataContentType())
	for _, path := range req.Paths {
		if err := box.sendPart(form, r, path); err != nil {
			return fmt.Errorf("%w: %w", errAborted, err)
		}
	}
	if err := form.Close(); err != nil {
		return fmt.Errorf("%w: %w", errAborted, err)
	}
	return nil
}

func (b *sandbox) sendPart(form *multipart.Writer, r *http.Request, path string) error {
	header := textproto.MIMEHeader{}
	disposition := func(name string) string {
		return fmt.Sprintf(`form-data; name="%s"; filename="%s"`, name, escapeQuotes.Replace(path))
	}
	abs, err := b.files.Abs(path)
	if err == nil {
		f, info, openErr := b.files.Open(abs)
		if openErr == nil && info.IsDir() {
			f.Close()
			openErr = fmt.Errorf("%s is a directory: %w", path, file.ErrNotRegular)
		}
		if openErr == nil {
			defer f.Close()
			header.Set("Content-Disposition", disposition("file"))
			header.Set("Content-Type", "application/octet-stream")
			if info.Size() > 0 {
				header.Set("Content-Length", strconv.FormatInt(info.Size(), 10))
			}
			part, err := form.CreatePart(header)
			if err != nil {
				return err
			}
			return copySized(part, f, info.Size())
		}
		err = openErr
	}
	answer := asToolboxError(err)
	header.Set("Content-Disposition", disposition("error"))
	header.Set("Content-Type", "application/json")
	part, err := form.CreatePart(header)
	if err != nil {
		return err
	}
	return encodeError(part, r, answer)
}

// escapeQuotes is what package multipart does to names.
var escapeQuotes = strings.NewReplacer("\\", "\\\\", `"`, "\\\"", "\r", "%0D", "\n", "%0A")

// copySized copies as many bytes as were announced; size 0 announces nothing.
func copySized(w io.Writer, r io.Reader, size int64) error {
	if size == 0 {
		_, err := io.Copy(w, r)
		return err
	}
	_, err := io.CopyN(w, r, size)
	return err
}

// getArchive is GET /files/archive: a directory as a tar stream. The trailer
// Skerry-Skipped counts sockets, FIFOs and devices that were left out.
func getArchive(box *sandbox, w http.ResponseWriter, r *http.Request) error {
	path, err := box.pathOf(r, "path")
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/x-tar")
	w.Header().Set("Trailer", "Skerry-Skipped")
	out := &countingWriter{w: w}
	skipped, err := box.files.Pack(path, out)
	switch {
	case err != nil && out.n == 0:
		w.Header().Del("Trailer")
		return err
	case err != nil:
		return fmt.Errorf("%w: %w", errAborted, err)
	}
	w.Header().Set("Skerry-Skipped", strconv.Itoa(skipped))
	return nil
}

type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

// putArchive is PUT /files/archive: unpacks a tar stream below a directory.
func putArchive(box *sandbox, w http.ResponseWriter, r *http.Request) error {
	path, err := box.pathOf(r, "path")
	if err != nil {
		return err
	}
	if err := box.files.Unpack(path, body{r.Body}); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
