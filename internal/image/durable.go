package image

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
)

// commit syncs the file at tmp and gives it its final name for good.
func commit(tmp, dst string) error {
	f, err := os.Open(tmp)
	if err != nil {
		return err
	}
	err = errors.Join(f.Sync(), f.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(tmp, dst); err != nil {
		return err
	}
	return syncDir(filepath.Dir(dst))
}

// syncDir makes the names in dir durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// writeDurable writes a small file by way of the temp directory tmp.
func writeDurable(tmp, dst string, data []byte) error {
	f, err := os.CreateTemp(tmp, "write-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = commit(f.Name(), dst)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

func writeJSON(tmp, dst string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return writeDurable(tmp, dst, append(data, '\n'))
}

func readJSON(path string, v any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}
