// Package cgroup puts hypervisor processes under CPU and memory limits, with
// control groups of version 1 or 2 ("Control Groups version 1" and "Control Group
// v2", Documentation/admin-guide of Linux), as root or in what was delegated to an
// ordinary user. What the host does not permit it says.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry"
)

// Groups makes a group for each machine, in up to two hierarchies: of the cpu
// and of the memory controller. With version 2 they are one.
type Groups struct {
	name     string
	cpu, mem *hierarchy // nil where not permitted
	all      []*hierarchy
	whyCPU   error // why cpu is nil
	v2       bool  // the cpu controller is of version 2
}

// hierarchy is a directory that holds a group per machine.
type hierarchy struct {
	dir         string
	parent      string
	v2          bool
	controllers []string // cpu, memory: what is permitted here
}

// Open finds out what is permitted by trying it. name separates the servers of
// one host.
func Open(name string) *Groups {
	g := &Groups{name: name}
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	if err == nil {
		var self []byte
		if self, err = os.ReadFile("/proc/self/cgroup"); err == nil {
			err = g.open(parseMounts(string(mountinfo)), string(self))
		}
	}
	if g.cpu == nil && err == nil {
		err = errors.New("no cpu controller is mounted")
	}
	g.whyCPU = err
	return g
}

// open takes each controller where it is. The error is why there is no cpu
// controller.
func (g *Groups) open(mounts []mount, self string) (err error) {
	for _, m := range mounts {
		parent := m.own(self)
		if parent == "" {
			continue
		}
		if m.v2 {
			parent = m.delegated(withoutServer(parent))
		}
		var want []string
		for _, c := range []string{"cpu", "memory"} {
			if m.offers(parent, c) && (c == "cpu" && g.cpu == nil || c == "memory" && g.mem == nil) {
				want = append(want, c)
			}
		}
		if len(want) == 0 {
			continue
		}
		h := &hierarchy{dir: filepath.Join(parent, "skerry-"+g.name), parent: parent, v2: m.v2, controllers: want}
		g.v2 = g.v2 || m.v2 && slices.Contains(want, "cpu")
		if perr := h.prepare(); perr != nil {
			if slices.Contains(want, "cpu") {
				err = perr
			}
			continue
		}
		g.all = append(g.all, h)
		if slices.Contains(want, "cpu") {
			g.cpu = h
		}
		if slices.Contains(want, "memory") {
			g.mem = h
		}
	}
	return err
}

// offers reports whether the children of the group dir can have a controller.
func (m mount) offers(dir, controller string) bool {
	have := m.controllers
	if m.v2 {
		text, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
		if err != nil {
			return false
		}
		have = strings.Fields(string(text))
	}
	return slices.Contains(have, controller)
}

// delegated is where groups may be made in a version 2 hierarchy: below our own
// group if that was delegated to us, as systemd marks it ("Control Group APIs and
// Delegation"), or is the only one we could; root else takes the top.
func (m mount) delegated(own string) string {
	if os.Getuid() != 0 {
		return own
	}
	for _, name := range []string{"trusted.delegate", "user.delegate"} {
		var b [1]byte
		if n, err := unix.Getxattr(own, name, b[:]); err == nil && n == 1 && b[0] == '1' {
			return own
		}
	}
	return m.point
}

// serverGroup is the group, below the machines' parent, that this process moves
// into where it is in the way: in version 2 a group has processes or children
// with controllers, not both.
const serverGroup = "server"

// withoutServer is the group that a server was started in, where own may be the
// one that it, or the server it was started by, has moved into since.
func withoutServer(own string) string {
	dir, name := filepath.Split(own)
	if dir = filepath.Clean(dir); name == serverGroup && strings.HasPrefix(filepath.Base(dir), "skerry-") {
		return filepath.Dir(dir)
	}
	return own
}

func (h *hierarchy) prepare() error {
	if err := mkdir(h.dir); err != nil {
		return err
	}
	if !h.v2 {
		return nil
	}
	enable := "+" + strings.Join(h.controllers, " +")
	err := write(h.parent, "cgroup.subtree_control", enable)
	if errors.Is(err, unix.EBUSY) {
		leaf := filepath.Join(h.dir, serverGroup)
		if err = mkdir(leaf); err == nil {
			err = write(leaf, "cgroup.procs", strconv.Itoa(os.Getpid()))
		}
		if err == nil {
			err = write(h.parent, "cgroup.subtree_control", enable)
		}
		if errors.Is(err, unix.EBUSY) {
			err = fmt.Errorf("other processes are in %s: %w", h.parent, err)
		}
	}
	if err != nil {
		return err
	}
	return write(h.dir, "cgroup.subtree_control", enable)
}

// Enforced reports whether CPU limits can be set, and if not why and what would
// help.
func (g *Groups) Enforced() (ok bool, why, fix string) {
	if g.cpu != nil {
		return true, "", ""
	}
	fix = "run the server as root"
	if g.v2 && os.Getuid() != 0 {
		fix = "run it in a group of its own: systemd-run --user --scope -p Delegate=yes skerry server"
	}
	return false, g.whyCPU.Error(), fix
}

// Place makes the groups of a machine, sets its limits and moves the process into
// them. cpuLimit is in cores. It returns the limits it could not enforce, in wire
// spelling.
func (g *Groups) Place(id skerry.MachineID, pid int, r skerry.Resources, cpuLimit float64) (unenforced []string, err error) {
	if g.cpu == nil {
		unenforced = []string{"resources.cpu", "resources.cpu_max"}
	}
	for _, h := range g.all {
		var set []setting
		if h == g.cpu {
			set = cpuSettings(h.v2, r.CPU, cpuLimit)
		}
		if h == g.mem {
			set = append(set, memorySettings(h.v2, r)...)
		}
		missing, err := h.place(id, pid, set)
		if err != nil {
			return nil, fmt.Errorf("control group: %w", err)
		}
		unenforced = append(unenforced, missing...)
	}
	return unenforced, nil
}

func (h *hierarchy) place(id skerry.MachineID, pid int, set []setting) (missing []string, err error) {
	dir := filepath.Join(h.dir, string(id))
	err = mkdir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		// The group above is empty between sandboxes, so whoever tidies up
		// may have removed it.
		if err = h.prepare(); err == nil {
			err = mkdir(dir)
		}
	}
	if err != nil {
		return nil, err
	}
	for _, s := range set {
		err := write(dir, s.file, s.value)
		if errors.Is(err, fs.ErrNotExist) { // a kernel without it
			if s.limit != "" && !slices.Contains(missing, s.limit) {
				missing = append(missing, s.limit)
			}
			continue
		}
		if err != nil {
			return nil, err
		}
	}
	return missing, write(dir, "cgroup.procs", strconv.Itoa(pid))
}

// Remove deletes the groups of a machine whose processes are gone.
func (g *Groups) Remove(id skerry.MachineID) error {
	var errs []error
	for _, h := range g.all {
		if err := os.Remove(filepath.Join(h.dir, string(id))); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Machines lists the machines that have a group.
func (g *Groups) Machines() []skerry.MachineID {
	var ids []skerry.MachineID
	for _, h := range g.all {
		entries, _ := os.ReadDir(h.dir)
		for _, e := range entries {
			if id := skerry.MachineID(e.Name()); e.IsDir() && id.Valid() && !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

// Close removes the directories of all groups that are empty.
func (g *Groups) Close() {
	for _, h := range g.all {
		os.Remove(h.dir)
	}
}

func mkdir(dir string) error {
	if err := os.Mkdir(dir, 0o755); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// write writes to a file that must be there: the file systems of control groups
// make none.
func write(dir, file, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
