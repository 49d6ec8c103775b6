package guesttest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"skerry.dev/skerry/internal/guestapi"
	"skerry.dev/skerry/internal/kernel"
)

const (
	mib         = 1 << 20
	scratchSize = 512 * mib
)

// makeDisks makes the image disk (one GPT partition for the platform and one for
// each layer) and the writable disk, and returns what the agent is told of them.
func (vm *VM) makeDisks(k *kernel.Kernel, o Options) guestapi.Boot {
	vm.t.Helper()
	boot := guestapi.Boot{Platform: 1, Address: "10.0.2.15/24", Gateway: "10.0.2.2", DNS: "10.0.2.3", MTU: 1500}
	parts := []string{vm.platform(k)}
	for i, dir := range o.Layers {
		file := filepath.Join(vm.Dir, fmt.Sprintf("layer%d.erofs", i))
		vm.tool("mkfs.erofs", file, dir)
		parts = append(parts, file)
		boot.Layers = append(boot.Layers, i+2)
	}
	vm.joinPartitions(parts)
	scratch := vm.Scratch()
	if o.Scratch != "" {
		info, err := os.Stat(o.Scratch)
		if err != nil {
			vm.t.Fatal(err)
		}
		vm.scratch = info.Size() / sector
		if err := os.Symlink(o.Scratch, scratch); err != nil {
			vm.t.Fatal(err)
		}
		return boot
	}
	if err := os.WriteFile(scratch, nil, 0o644); err != nil {
		vm.t.Fatal(err)
	}
	if err := os.Truncate(scratch, scratchSize); err != nil {
		vm.t.Fatal(err)
	}
	vm.tool("mkfs.ext4", "-q", scratch)
	vm.scratch = scratchSize / 512
	return boot
}

func (vm *VM) platform(k *kernel.Kernel) string {
	vm.t.Helper()
	name := filepath.Join(vm.Dir, "platform.tar")
	f, err := os.Create(name)
	if err != nil {
		vm.t.Fatal(err)
	}
	defer f.Close()
	if err := kernel.WritePlatformTar(k, f); err != nil {
		vm.t.Fatal(err)
	}
	// mkfs.erofs of this age reads no tar.
	tree := filepath.Join(vm.Dir, "platform")
	if err := os.Mkdir(tree, 0o755); err != nil {
		vm.t.Fatal(err)
	}
	vm.tool("tar", "-C", tree, "-xf", name)
	file := filepath.Join(vm.Dir, "platform.erofs")
	vm.tool("mkfs.erofs", "--all-root", file, tree)
	if err := os.RemoveAll(tree); err != nil {
		vm.t.Fatal(err)
	}
	return file
}

func (vm *VM) joinPartitions(files []string) {
	vm.t.Helper()
	disk, err := os.Create(filepath.Join(vm.Dir, "image"))
	if err != nil {
		vm.t.Fatal(err)
	}
	defer disk.Close()
	var parts []extent
	at := int64(mib)
	for _, name := range files {
		content, err := os.ReadFile(name)
		if err != nil {
			vm.t.Fatal(err)
		}
		if _, err := disk.WriteAt(content, at); err != nil {
			vm.t.Fatal(err)
		}
		size := (int64(len(content)) + mib - 1) / mib * mib
		parts = append(parts, extent{at / sector, size / sector})
		at += size
	}
	if err := disk.Truncate(at); err != nil {
		vm.t.Fatal(err)
	}
	if _, err := disk.WriteAt(gpt(parts, at/sector), 0); err != nil {
		vm.t.Fatal(err)
	}
}

func (vm *VM) tool(name string, args ...string) (out string) {
	vm.t.Helper()
	for _, dir := range []string{"", "/usr/sbin/"} {
		path, err := exec.LookPath(dir + name)
		if err != nil {
			continue
		}
		out, err := exec.Command(path, args...).CombinedOutput()
		if err != nil {
			vm.t.Fatalf("%s: %v: %s", name, err, bytes.TrimSpace(out))
		}
		return string(out)
	}
	vm.t.Fatalf("%s is not installed; type: make setup", name)
	return ""
}
