package pid1

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// modprobeParam tells the kernel which program loads modules on demand. The
// agent does, so that it works on images without kmod too. The link is to the
// agent's own file, which no path leads to any more.
const (
	modprobeParam = "/proc/sys/kernel/modprobe"
	modprobePath  = "/proc/1/exe"
)

var errNoAlias = errors.New("no module has this name")

// Modprobe loads the module with a name or alias, and what it needs, from the
// module tree of the running kernel. It is what the kernel runs as
// "modprobe -q -- name" (kernel/kmod.c).
func Modprobe(name string) error {
	version, err := Kernel()
	if err != nil {
		return err
	}
	dir := filepath.Join("/lib/modules", version)
	files, err := resolveModule(dir, name)
	if err != nil {
		return fmt.Errorf("modprobe %s: %w", name, err)
	}
	for _, file := range files {
		if err := loadModule(filepath.Join(dir, file)); err != nil {
			return fmt.Errorf("modprobe %s: %w", name, err)
		}
	}
	return nil
}

// resolveModule returns the files to load for a name or alias, in order.
func resolveModule(dir, name string) ([]string, error) {
	modules, err := matchAliases(filepath.Join(dir, "modules.alias"), normalName(name))
	if err != nil {
		return nil, err
	}
	modules = append(modules, normalName(name))
	deps, err := os.Open(filepath.Join(dir, "modules.dep"))
	if err != nil {
		return nil, err
	}
	defer deps.Close()
	var files []string
	for s := bufio.NewScanner(deps); s.Scan(); {
		file, needs, _ := strings.Cut(s.Text(), ":")
		base, _, _ := strings.Cut(path.Base(file), ".ko")
		if !slices.Contains(modules, normalName(base)) {
			continue
		}
		// modules.dep(5) lists what to load first last.
		for _, f := range slices.Backward(append([]string{file}, strings.Fields(needs)...)) {
			if !slices.Contains(files, f) {
				files = append(files, f)
			}
		}
	}
	if len(files) == 0 {
		return nil, errNoAlias
	}
	return files, nil
}

// matchAliases returns the modules whose alias pattern matches a name.
func matchAliases(file, name string) ([]string, error) {
	aliases, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer aliases.Close()
	var modules []string
	for s := bufio.NewScanner(aliases); s.Scan(); {
		fields := strings.Fields(s.Text()) // alias pattern module
		if len(fields) != 3 || fields[0] != "alias" {
			continue
		}
		if ok, err := path.Match(normalName(fields[1]), name); err == nil && ok {
			modules = append(modules, normalName(fields[2]))
		}
	}
	return modules, nil
}

// normalName: module names take - and _ for the same, except inside brackets of
// a pattern.
func normalName(name string) string {
	depth := 0
	return strings.Map(func(r rune) rune {
		switch {
		case r == '[':
			depth++
		case r == ']':
			depth--
		case r == '-' && depth == 0:
			return '_'
		}
		return r
	}, name)
}

// setModprobe makes the kernel call the agent. Blacklists and options of
// modprobe.d(5) belong to hardware and are not read.
func setModprobe() error {
	return os.WriteFile(modprobeParam, []byte(modprobePath), 0)
}

// loadFlags lets the kernel unpack modules that the distribution compressed.
func loadFlags(file string) int {
	if strings.HasSuffix(file, ".ko") {
		return 0
	}
	return unix.MODULE_INIT_COMPRESSED_FILE
}
