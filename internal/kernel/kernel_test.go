package kernel

import (
	"os"
	"testing"
	"path/filepath"
)

func TestUnpackX(t *testing.T) {
	debs, _ := filepath.Glob("/tmp/kernel/*.deb")
	os.RemoveAll("/tmp/guest-k/kernel")
	k, err := Unpack(t.Context(), debs[0], "/tmp/guest-k/kernel")
	t.Log(k, err)
}
