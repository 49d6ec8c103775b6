package testserver

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"skerry.dev/skerry/internal/shim"
)

// Process is a process that belongs to a server's directory.
type Process struct {
	PID  int
	Args []string
}

// IsShim reports whether it is the shim of a machine.
func (p Process) IsShim() bool { return len(p.Args) == 2 && p.Args[0] == shim.ProgramName }

// IsQEMU reports whether it is a hypervisor.
func (p Process) IsQEMU() bool {
	return len(p.Args) > 0 && strings.Contains(filepath.Base(p.Args[0]), "qemu-system")
}

// Machines counts the shims and hypervisors of the directory.
func (d *Dir) Machines() (shims, hypervisors int, err error) {
	processes, err := d.Processes()
	for _, p := range processes {
		switch {
		case p.IsShim():
			shims++
		case p.IsQEMU():
			hypervisors++
		}
	}
	return shims, hypervisors, err
}

// Processes lists the processes that have the directory in their command line,
// as their working directory or program, or a file of it open: a hypervisor gets
// its files as descriptors. The caller's own process is left out.
func (d *Dir) Processes() ([]Process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var found []Process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		cmdline, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil || len(cmdline) == 0 {
			continue // gone, or a thread of the kernel, or a zombie
		}
		args := strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00")
		if slices.ContainsFunc(args, d.named) || d.holds(pid) {
			found = append(found, Process{PID: pid, Args: args})
		}
	}
	return found, nil
}

// contains reports whether a path is the directory or below it.
func (d *Dir) contains(path string) bool {
	return path == d.Path || strings.HasPrefix(path, d.Path+"/")
}

// named reports whether an argument names the directory or a file of it.
func (d *Dir) named(arg string) bool {
	return strings.HasSuffix(arg, d.Path) || strings.Contains(arg, d.Path+"/")
}

// holds reports whether a process has something of the directory open.
func (d *Dir) holds(pid int) bool {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	links := []string{filepath.Join(proc, "cwd"), filepath.Join(proc, "exe")}
	fds, _ := filepath.Glob(filepath.Join(proc, "fd", "*"))
	for _, link := range append(links, fds...) {
		if target, err := os.Readlink(link); err == nil && d.contains(target) {
			return true
		}
	}
	return false
}

// Machine is what the files in its directory say of a machine.
type Machine struct {
	ID     string
	Shim   int // process id
	QEMU   int // process id, 0 if there is none yet
	Phase  string
	Forked bool // from a zygote: that it was to be, and is not a child of its shim
	Zygote bool
}

// AllMachines returns the machines of the directory. Of one that is just being
// made or removed the rest may be missing.
func (d *Dir) AllMachines() ([]Machine, error) {
	dirs, err := filepath.Glob(filepath.Join(d.Data(), "machines", "*"))
	if err != nil {
		return nil, err
	}
	var all []Machine
	for _, dir := range dirs {
		var spec struct{ Forked, Zygote bool }
		var status struct {
			PID        int    `json:"pid"`
			MachinePID int    `json:"machine_pid"`
			Phase      string `json:"phase"`
		}
		for file, into := range map[string]any{"spec.json": &spec, "status.json": &status} {
			b, err := os.ReadFile(filepath.Join(dir, file))
			if err == nil {
				err = json.Unmarshal(b, into)
			}
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return nil, fmt.Errorf("%s: %w", dir, err)
			}
		}
		forked := spec.Forked && (status.MachinePID == 0 || parent(status.MachinePID) != status.PID)
		all = append(all, Machine{filepath.Base(dir), status.PID, status.MachinePID, status.Phase, forked, spec.Zygote})
	}
	return all, nil
}

// MachineOf returns a machine that has both of its processes. The hypervisor of
// one that was forked is not a child of its shim.
func (d *Dir) MachineOf(machineID string) (Machine, error) {
	all, err := d.AllMachines()
	if err != nil {
		return Machine{}, err
	}
	for _, m := range all {
		if m.ID == machineID && m.Shim != 0 && m.QEMU != 0 {
			return m, nil
		}
	}
	return Machine{}, fmt.Errorf("machine %s is not there, or has no shim or no hypervisor: %+v", machineID, all)
}

// MachineProcesses returns shim and hypervisor of a machine.
func (d *Dir) MachineProcesses(machineID string) (shimPID, qemu int, err error) {
	m, err := d.MachineOf(machineID)
	return m.Shim, m.QEMU, err
}

func parent(pid int) int {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "PPid:"); ok {
			ppid, _ := strconv.Atoi(strings.TrimSpace(v))
			return ppid
		}
	}
	return 0
}

// Leftovers lists what should be gone once all sandboxes are deleted and the
// server has ended, and all snapshots: processes, sockets, directories of
// machines, sandboxes, snapshots and forks, half-made templates, control groups.
func (d *Dir) Leftovers() ([]string, error) {
	processes, err := d.Processes()
	if err != nil {
		return nil, err
	}
	var left []string
	for _, p := range processes {
		left = append(left, fmt.Sprintf("process %d: %q", p.PID, p.Args))
	}
	for _, pattern := range []string{"machines/*", "sandboxes/*", "snapshots/*", "forks/*", "templates/new-*", "images/tmp/*", "spool/*"} {
		names, err := filepath.Glob(filepath.Join(d.Data(), pattern))
		if err != nil {
			return nil, err
		}
		left = append(left, names...)
	}
	sockets, err := d.unixSockets()
	if err != nil {
		return nil, err
	}
	left = append(left, sockets...)
	for _, group := range d.controlGroups() {
		left = append(left, "control group "+group)
	}
	slices.Sort(left)
	return left, nil
}

// controlGroups lists the control groups of the server's own that there are.
func (d *Dir) controlGroups() []string {
	id, err := os.ReadFile(filepath.Join(d.Data(), "runner-id"))
	if err != nil {
		return nil // it has never run
	}
	var groups []string
	for _, pattern := range []string{"/sys/fs/cgroup/skerry-%s", "/sys/fs/cgroup/cpu/skerry-%s"} {
		group := fmt.Sprintf(pattern, strings.TrimSpace(string(id)))
		if _, err := os.Lstat(group); err == nil {
			groups = append(groups, group)
		}
	}
	return groups
}

// unixSockets lists the sockets that are bound in the directory (proc_net(5)).
func (d *Dir) unixSockets() ([]string, error) {
	f, err := os.Open("/proc/net/unix")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var found []string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if strings.Contains(lines.Text(), " "+d.Path+"/") {
			found = append(found, "socket "+lines.Text())
		}
	}
	return found, lines.Err()
}
