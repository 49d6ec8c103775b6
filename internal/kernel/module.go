package kernel

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// wanted are the modules the agent needs before it can mount the image, in the
// order of loading. A kernel may have some of them built in.
var wanted = []string{
	"virtio_pci", "virtio_blk", "virtio_console", "virtio_net",
	"virtio_balloon", "virtio_mem", "erofs", "overlay", "ext4",
}

var errNoModule = errors.New("kernel has no such module")

// bootModules returns the wanted modules and what they depend on, as paths
// below ModulesDir in the order of loading.
func (k *Kernel) bootModules() ([]string, error) {
	deps, err := readDeps(filepath.Join(k.ModulesDir, "modules.dep"))
	if err != nil {
		return nil, err
	}
	builtin, err := os.ReadFile(filepath.Join(k.ModulesDir, "modules.builtin"))
	if err != nil {
		return nil, err
	}
	have := make(map[string]string) // name to path
	for path := range deps {
		have[moduleName(path)] = path
	}
	builtins := make(map[string]bool)
	for path := range strings.FieldsSeq(string(builtin)) {
		builtins[moduleName(path)] = true
	}
	var order []string
	for _, name := range wanted {
		if builtins[name] {
			continue
		}
		path, ok := have[name]
		if !ok {
			return nil, fmt.Errorf("%w: %s", errNoModule, name)
		}
		// modules.dep lists what to load last first (modules.dep(5)).
		for _, dep := range slices.Backward(append([]string{path}, deps[path]...)) {
			if !slices.Contains(order, dep) {
				order = append(order, dep)
			}
		}
	}
	return order, nil
}

// readDeps reads modules.dep(5): each module's dependencies, all levels.
func readDeps(path string) (map[string][]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	deps := make(map[string][]string)
	for line := range strings.Lines(string(text)) {
		name, rest, ok := strings.Cut(line, ":")
		if !ok {
			return nil, fmt.Errorf("%s: line without colon: %q", path, line)
		}
		deps[name] = strings.Fields(rest)
	}
	return deps, nil
}

// moduleName is the name the kernel gives the module in a file.
func moduleName(path string) string {
	name, _, _ := strings.Cut(filepath.Base(path), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}
