package cgroup

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"skerry.dev/skerry"
)

func TestOwnGroup(t *testing.T) {
	const (
		v1 = "31 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n" +
			"34 30 0:31 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n" +
			"39 30 0:36 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"
		v2        = "29 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
		container = "29 22 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n"
	)
	tests := []struct {
		name, mounts, self string
		want               []string // own group by mount
	}{
		{"version 1", v1, "9:name=systemd:/user.slice\n4:memory:/process/x\n1:cpu,cpuacct:/\n0::/\n",
			[]string{"/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/memory/process/x", "/sys/fs/cgroup/systemd/user.slice"}},
		{"version 2", v2, "0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-1.scope\n",
			[]string{"/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice/run-1.scope"}},
		{"version 2 in a container with its group mounted", container, "0::/docker/abc/init\n", []string{"/sys/fs/cgroup/init"}},
		{"a group outside of what is mounted", container, "0::/user.slice\n", []string{""}},
		{"both", v2 + v1, "1:cpu,cpuacct:/a\n0::/b\n", []string{"/sys/fs/cgroup/b", "/sys/fs/cgroup/cpu,cpuacct/a", "", ""}},
		{"a mount point with a blank", `29 22 0:26 / /c\040g rw - cgroup2 cgroup2 rw` + "\n", "0::/\n", []string{"/c g"}},
		{"nothing", "22 1 0:20 / / rw - ext4 /dev/vda rw\n\ngarbage\n", "", nil},
		{"a self without groups", v2, "garbage\n::\n", []string{""}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, m := range parseMounts(tt.mounts) {
				got = append(got, m.own(tt.self))
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestCPUSettings(t *testing.T) {
	tests := []struct {
		cores, limit  float64
		shares, quota string
		weight, max   string
	}{
		{0.125, 0.125, "128", "2500", "12", "2500 20000"},
		{0.5, 1, "512", "20000", "50", "20000 20000"},
		{1, 1.5, "1024", "30000", "100", "30000 20000"},
		{16, 16, "16384", "320000", "1600", "320000 20000"},
		{0.001, 0.5, "2", "10000", "1", "10000 20000"},
		{1000, 1000, "262144", "20000000", "10000", "20000000 20000"},
	}
	for _, tt := range tests {
		v1 := []setting{{"cpu.shares", tt.shares, "resources.cpu"}, {"cpu.cfs_period_us", "20000", "resources.cpu_max"}, {"cpu.cfs_quota_us", tt.quota, "resources.cpu_max"}}
		v2 := []setting{{"cpu.weight", tt.weight, "resources.cpu"}, {"cpu.max", tt.max, "resources.cpu_max"}}
		if d := cmp.Diff(v1, cpuSettings(false, tt.cores, tt.limit), cmp.AllowUnexported(setting{})); d != "" {
			t.Error(d)
		}
		if d := cmp.Diff(v2, cpuSettings(true, tt.cores, tt.limit), cmp.AllowUnexported(setting{})); d != "" {
			t.Error(d)
		}
	}
}

func TestMemorySettings(t *testing.T) {
	r := skerry.Resources{MemoryMiB: 1024, MemoryMaxMiB: 4096}
	for v2, want := range map[bool]setting{false: {"memory.limit_in_bytes", "4966055936", ""}, true: {"memory.max", "4966055936", ""}} {
		if d := cmp.Diff([]setting{want}, memorySettings(v2, r), cmp.AllowUnexported(setting{})); d != "" {
			t.Error(d)
		}
	}
}

func TestWithoutServer(t *testing.T) {
	for own, want := range map[string]string{
		"/sys/fs/cgroup/a.scope/skerry-run_x/server": "/sys/fs/cgroup/a.scope",
		"/sys/fs/cgroup/skerry-run_x/server":         "/sys/fs/cgroup",
		"/sys/fs/cgroup/a.scope":                     "/sys/fs/cgroup/a.scope",
		"/sys/fs/cgroup/web/server":                  "/sys/fs/cgroup/web/server",
		"/sys/fs/cgroup":                             "/sys/fs/cgroup",
	} {
		if got := withoutServer(own); got != want {
			t.Errorf("a server in %s was started in %s, want %s", own, got, want)
		}
	}
}
