package runner

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry"
)

// Cgroups places hypervisor processes in control groups of their own, version
// 1 or 2, where the host permits it.
type Cgroups struct {
	root string // directory that holds a group per machine, "" where not permitted
	v2   bool
	why  string // why not permitted
}

const cgroupMount = "/sys/fs/cgroup"

// OpenCgroups finds out what is permitted by trying it. name separates the
// servers of one host.
func OpenCgroups(name string) *Cgroups {
	var st unix.Statfs_t
	if err := unix.Statfs(cgroupMount, &st); err != nil {
		return &Cgroups{why: cgroupMount + ": " + err.Error()}
	}
	c := &Cgroups{v2: st.Type == unix.CGROUP2_SUPER_MAGIC}
	if c.v2 {
		c.root = filepath.Join(cgroupMount, "skerry-"+name)
	} else {
		c.root = filepath.Join(cgroupMount, "cpu", "skerry-"+name)
	}
	if err := c.prepare(); err != nil {
		return &Cgroups{v2: c.v2, why: err.Error()}
	}
	return c
}

func (c *Cgroups) prepare() error {
	if c.v2 {
		// A controller must be on in the parent before a group has its files.
		if err := os.WriteFile(filepath.Join(cgroupMount, "cgroup.subtree_control"), []byte("+cpu"), 0); err != nil {
			return err
		}
	}
	if err := os.Mkdir(c.root, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if c.v2 {
		return os.WriteFile(filepath.Join(c.root, "cgroup.subtree_control"), []byte("+cpu"), 0)
	}
	return nil
}

// Enforced reports whether CPU shares can be set, and if not why.
func (c *Cgroups) Enforced() (bool, string) { return c.root != "", c.why }

// place makes the group of a machine, gives it its share of the processors and
// moves the process into it. It returns the limits it could not enforce.
func (c *Cgroups) place(id skerry.MachineID, pid int, r skerry.Resources) (unenforced []string, err error) {
	if c.root == "" {
		return []string{"resources.cpu"}, nil
	}
	dir := filepath.Join(c.root, string(id))
	if err := c.mkdir(dir); err != nil {
		return nil, fmt.Errorf("control group: %w", err)
	}
	file, value := "cpu.shares", cpuShares(r.CPU)
	if c.v2 {
		file, value = "cpu.weight", cpuWeight(r.CPU)
	}
	for _, w := range []struct{ file, value string }{{file, strconv.Itoa(value)}, {"cgroup.procs", strconv.Itoa(pid)}} {
		if err := os.WriteFile(filepath.Join(dir, w.file), []byte(w.value), 0); err != nil {
			return nil, fmt.Errorf("control group: %w", err)
		}
	}
	return nil, nil
}

// mkdir makes the group of a machine. The one above it is empty between
// sandboxes, so whoever tidies up may have removed it.
func (c *Cgroups) mkdir(dir string) error {
	err := os.Mkdir(dir, 0o755)
	if errors.Is(err, fs.ErrNotExist) {
		if err = c.prepare(); err == nil {
			err = os.Mkdir(dir, 0o755)
		}
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// remove deletes the group of a machine whose processes are gone.
func (c *Cgroups) remove(id skerry.MachineID) error {
	if c.root == "" {
		return nil
	}
	if err := os.Remove(filepath.Join(c.root, string(id))); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// leftovers lists the machines that have a group.
func (c *Cgroups) leftovers() []skerry.MachineID {
	if c.root == "" {
		return nil
	}
	entries, _ := os.ReadDir(c.root)
	var ids []skerry.MachineID
	for _, e := range entries {
		if e.IsDir() && strings.HasPrefix(e.Name(), "mch_") {
			ids = append(ids, skerry.MachineID(e.Name()))
		}
	}
	return ids
}

// Close removes the directory of all groups if it is empty.
func (c *Cgroups) Close() {
	if c.root != "" {
		os.Remove(c.root)
	}
}

// cpuShares and cpuWeight turn guaranteed cores into the relative shares of
// version 1 (1024 a core) and 2 (100 a core), within the kernel's bounds.
func cpuShares(cores float64) int { return min(max(int(cores*1024), 2), 262144) }
func cpuWeight(cores float64) int { return min(max(int(cores*100), 1), 10000) }
