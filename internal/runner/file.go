package runner

import "os"

// replaceFile writes a private file in one step, so that a crash leaves the old
// or the new content, never a part.
func replaceFile(path string, content []byte) error {
	tmp := path + ".new"
	if err := os.WriteFile(tmp, content, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}
