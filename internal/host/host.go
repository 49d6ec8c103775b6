// Package host checks what a host must have to run sandboxes. The same facts
// are printed by `skerry doctor` and reported by a runner.
package host

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry"
)

// Disk space below which a host is warned about, and fails, in MiB.
const (
	warnDiskMiB = 10 * 1024
	failDiskMiB = 1024
)

// Probe is a check that needs a part of the system this package does not know.
type Probe func(context.Context) skerry.Check

// Config names what is checked.
type Config struct {
	DataDir string
	// These are probed by those who use them; nil ones are left out.
	Hypervisor, Kernel, Accel, ImageBuild Probe
	// CgroupsEnforced says whether CPU limits can be set, and if not why, and
	// what would help.
	CgroupsEnforced func() (ok bool, why, fix string)
	// MachineUID is a user id such as hypervisors run as, 0 for this process's.
	MachineUID uint32
}

// Check runs all checks in the order in which they depend on each other.
func Check(ctx context.Context, cfg Config) []skerry.Check {
	var out []skerry.Check
	for _, p := range []Probe{cfg.Hypervisor, cfg.Kernel, cfg.Accel} {
		if p != nil {
			out = append(out, p(ctx))
		}
	}
	out = append(out, diskSpace(cfg.DataDir))
	if cfg.CgroupsEnforced != nil {
		out = append(out, cgroups(cfg.CgroupsEnforced))
	}
	out = append(out, saves(ctx, cfg.MachineUID), tool("mkfs.ext4", "makes the writable disks", "e2fsprogs"))
	if cfg.ImageBuild != nil {
		out = append(out, cfg.ImageBuild(ctx))
	}
	return out
}

// Failed reports whether some check means that sandboxes cannot run.
func Failed(checks []skerry.Check) bool {
	for _, c := range checks {
		if c.Level == skerry.CheckFail {
			return true
		}
	}
	return false
}

func diskSpace(dir string) skerry.Check {
	c := skerry.Check{Name: "disk space"}
	var st unix.Statfs_t
	if err := unix.Statfs(existing(dir), &st); err != nil {
		c.Level, c.Detail = skerry.CheckFail, err.Error()
		return c
	}
	free := int64(st.Bavail) * st.Bsize >> 20
	c.Detail = fmt.Sprintf("%.1f GiB free for %s", float64(free)/1024, dir)
	switch {
	case free < failDiskMiB:
		c.Level, c.Fix = skerry.CheckFail, "free some space, or choose another disk with --data-dir"
	case free < warnDiskMiB:
		c.Level, c.Fix = skerry.CheckWarn, "images and sandboxes need room: 10 GiB or more are advised"
	default:
		c.Level = skerry.CheckOK
	}
	return c
}

// existing returns the nearest parent of dir that is there.
func existing(dir string) string {
	for {
		if _, err := os.Stat(dir); err == nil || dir == filepath.Dir(dir) {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

func cgroups(enforced func() (ok bool, why, fix string)) skerry.Check {
	c := skerry.Check{Name: "control groups", Level: skerry.CheckOK, Detail: "CPU shares and limits are enforced"}
	if ok, why, fix := enforced(); !ok {
		c.Level, c.Fix = skerry.CheckWarn, fix
		c.Detail = "CPU shares and limits are not enforced (" + why + "); each sandbox reports it"
	}
	return c
}

// saves checks whether the memory of a machine can be read from outside, which
// pause, fork and memory snapshots do, by a try with a process like one.
func saves(ctx context.Context, uid uint32) skerry.Check {
	c := skerry.Check{Name: "memory of machines", Level: skerry.CheckOK, Detail: "can be saved: pause, fork and memory snapshots work"}
	if err := readMemoryOf(ctx, uid); err != nil {
		c.Level, c.Detail = skerry.CheckWarn, "cannot be saved ("+err.Error()+"): pause, fork and memory snapshots do not work"
		c.Fix = "sudo sysctl kernel.yama.ptrace_scope=1, and give a server that is root CAP_SYS_PTRACE"
	}
	return c
}

func readMemoryOf(ctx context.Context, uid uint32) error {
	cmd := exec.CommandContext(ctx, "sleep", "60")
	if uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer cmd.Wait() // it was killed
	defer cmd.Process.Kill()
	f, err := os.Open(fmt.Sprintf("/proc/%d/mem", cmd.Process.Pid)) // wants the same right as process_vm_readv(2)
	if err != nil {
		return err
	}
	return f.Close()
}

// sbin is searched too: mkfs is not in an ordinary user's PATH on Debian.
func tool(name, purpose, pkg string) skerry.Check {
	c := skerry.Check{Name: name, Level: skerry.CheckOK}
	path, err := exec.LookPath(name)
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if err != nil {
			path, err = exec.LookPath(filepath.Join(dir, name))
		}
	}
	if err != nil {
		c.Level, c.Detail = skerry.CheckFail, "not found; it "+purpose
		c.Fix = "sudo apt-get install " + pkg
		return c
	}
	c.Detail = strings.TrimSpace(path) + ", " + purpose
	return c
}
