package kernel

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/u-root/u-root/pkg/cpio"
	"github.com/ulikunitz/xz"
)

// BuildInitramfs writes the initramfs: the agent as /init and the modules needed
// at boot as /modules/NN-name.ko in the order of loading. Equal input gives
// equal bytes. It is not compressed: under software emulation unpacking costs
// more than loading, and its memory is freed either way.
func BuildInitramfs(k *Kernel, agent []byte, out io.Writer) error {
	if err := buildInitramfs(k, agent, out); err != nil {
		return fmt.Errorf("build initramfs: %w", err)
	}
	return nil
}

func buildInitramfs(k *Kernel, agent []byte, out io.Writer) error {
	modules, err := k.bootModules()
	if err != nil {
		return err
	}
	records := []cpio.Record{
		cpio.Directory("dev", 0o755),
		// The kernel opens the console for PID 1 before anything is mounted.
		cpio.CharDev("dev/console", 0o600, 5, 1),
		cpio.CharDev("dev/null", 0o666, 1, 3),
		cpio.StaticFile("init", string(agent), 0o755),
		cpio.Directory("modules", 0o755),
	}
	for i, path := range modules {
		content, err := readModule(filepath.Join(k.ModulesDir, path))
		if err != nil {
			return err
		}
		name := fmt.Sprintf("modules/%02d-%s.ko", i, moduleName(path))
		records = append(records, cpio.StaticFile(name, string(content), 0o644))
	}
	w := cpio.Newc.Writer(out)
	for i, r := range records {
		r.Ino = uint64(i + 1)
		if err := w.WriteRecord(cpio.MakeReproducible(r)); err != nil {
			return err
		}
	}
	return cpio.WriteTrailer(w)
}

// maxModule bounds a module's size in bytes.
const maxModule = 64 << 20

// readModule reads a module, decompressed: the kernel might lack the means.
func readModule(path string) ([]byte, error) {
	packed, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var r io.Reader = bytes.NewReader(packed)
	switch filepath.Ext(path) {
	case ".xz":
		r, err = xz.NewReader(r)
	case ".gz":
		r, err = gzip.NewReader(r)
	case ".zst":
		var z *zstd.Decoder
		z, err = zstd.NewReader(r)
		if err == nil {
			defer z.Close()
			r = z
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	content, err := io.ReadAll(io.LimitReader(r, maxModule+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(content) > maxModule {
		return nil, fmt.Errorf("%s: over %d bytes", path, maxModule)
	}
	return content, nil
}
