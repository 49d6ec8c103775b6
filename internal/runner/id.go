package runner

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"skerry.dev/skerry"
)

// LoadID returns the identifier of the runner whose data directory dir is; the
// first call makes it.
func LoadID(dir string) (skerry.RunnerID, error) {
	path := filepath.Join(dir, "runner-id")
	b, err := os.ReadFile(path)
	if err == nil {
		id := skerry.RunnerID(strings.TrimSpace(string(b)))
		if !id.Valid() {
			return "", fmt.Errorf("%s does not hold a runner id", path)
		}
		return id, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	id := skerry.NewRunnerID()
	return id, replaceFile(path, []byte(id+"\n"))
}
