package toolbox

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/guest/toolbox/file"
)

// pathOf returns the absolute form of a path in the query.
func (b *sandbox) pathOf(r *http.Request, name string) (string, error) {
	return b.files.Abs(r.URL.Query().Get(name))
}

// listFiles is GET /files. The answer is streamed, so a big tree takes no
// memory; an error after its begin cuts the connection.
func listFiles(box *sandbox, w http.ResponseWriter, r *http.Request) error {
	path := r.URL.Query().Get("path")
	if path == "" {
		path = "."
	}
	path, err := box.files.Abs(path)
	if err != nil {
		return err
	}
	depth, err := queryInt(r, "depth", 1, 1, file.MaxDepth)
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(w, 16<<10)
	begun := false
	begin := func() {
		w.Header().Set("Content-Type", "application/json")
		begun = true
		out.WriteByte('[')
	}
	err = box.files.List(path, depth, func(info skerry.FileInfo) error {
		if !begun {
			begin()
		} else {
			out.WriteByte(',')
		}
		text, err := json.Marshal(info)
		if err == nil {
			_, err = out.Write(text) // keeps the errors of WriteByte
		}
		return err
	})
	switch {
	case err != nil && begun:
		return fmt.Errorf("%w: %w", errAborted, err)
	case err != nil:
		return err
	case !begun:
		begin()
	}
	out.WriteString("]\n")
	if err := out.Flush(); err != nil {
		return fmt.Errorf("%w: %w", errAborted, err)
	}
	return nil
}

func fileInfo(box *sandbox, w http.ResponseWriter, r *http.Request) error {
	path, err := box.pathOf(r, "path")
	if err != nil {
		return err
	}
	info, err := box.files.Stat(path)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, info)
}

func deleteFile(box *sandbox, w http.ResponseWriter, r *http.Request) error {
	path, err := box.pathOf(r, "path")
	if err != nil {
		return err
	}
	recursive, err := queryBool(r, "recursive")
	if err != nil {
		return err
	}
	if err := box.files.Remove(path, recursive); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func createFolder(box *sandbox, w http.ResponseWriter, r *http.Request) error {
	path, err := box.pathOf(r, "path")
	if err != nil {
		return err
	}
	mode, err := file.ParseMode(r.URL.Query().Get("mode"), 0o755)
	if err != nil {
		return err
	}
	if err := box.files.Mkdir(path, mode); err != nil {
		return err
	}
	w.WriteHeader(http.StatusCreated)
	return nil
}

func moveFile(box *sandbox, w http.ResponseWriter, r *http.Request) error {
	source, err := box.pathOf(r, "source")
	if err != nil {
		return err
	}
	destination, err := box.pathOf(r, "destination")
	if err != nil {
		return err
	}
	if err := box.files.Move(source, destination); err != nil {
		return err
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

// permissionsOf reads mode, owner and group of a query.
func permissionsOf(r *http.Request) file.Permissions {
	query := r.URL.Query()
	return file.Permissions{Mode: query.Get("mode"), Owner: query.Get("owner"), Group: query.Get("group")}
}

func setPermissions(box *sandbox, w http.ResponseWriter, r *http.Request) error {
	path, err := box.pathOf(r, "path")
	if err != nil {
		return err
	}
	if err := box.files.Chmod(path, permissionsOf(r)); err != nil {
		return err
	}
	w.WriteHeader(http.StatusOK)
	return nil
}
