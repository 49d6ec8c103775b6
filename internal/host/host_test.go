package host

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"skerry.dev/skerry"
)

func TestCheckOrderAndFailure(t *testing.T) {
	probe := func(name string, level skerry.CheckLevel) Probe {
		return func(context.Context) skerry.Check { return skerry.Check{Name: name, Level: level} }
	}
	for _, tt := range []struct {
		name string
		cfg  Config
		want []string // of the probes, in order
		fail bool
	}{
		{"nothing to probe", Config{}, nil, false},
		{"a warning is no failure", Config{Accel: probe("accel", skerry.CheckWarn), ImageBuild: probe("build", skerry.CheckWarn)},
			[]string{"accel", "build"}, false},
		{"a failure", Config{Hypervisor: probe("qemu", skerry.CheckFail), Kernel: probe("kernel", skerry.CheckOK)},
			[]string{"qemu", "kernel"}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			// Not there yet: space is that of the nearest parent.
			tt.cfg.DataDir = filepath.Join(t.TempDir(), "a", "b")
			checks := Check(t.Context(), tt.cfg)
			var probed []skerry.Check
			for _, c := range checks {
				switch c.Name {
				case "disk space":
					if c.Detail == "" {
						t.Error("disk space says nothing")
					}
				case "mkfs.ext4":
				case "memory of machines":
					if c.Level != skerry.CheckOK {
						t.Errorf("%s: %s", c.Name, c.Detail)
					}
				default:
					probed = append(probed, c)
				}
			}
			if len(probed) != len(tt.want) {
				t.Fatalf("probed %v, want %v", probed, tt.want)
			}
			for i, c := range probed {
				if c.Name != tt.want[i] {
					t.Errorf("check %d is %s, want %s", i, c.Name, tt.want[i])
				}
			}
			if got := Failed(probed); got != tt.fail {
				t.Errorf("Failed = %v, want %v", got, tt.fail)
			}
		})
	}
}

func TestCgroupsSayWhy(t *testing.T) {
	c := cgroups(func() (bool, string, string) { return false, "no root", "be root" })
	if c.Level != skerry.CheckWarn || c.Detail != "CPU shares and limits are not enforced (no root); each sandbox reports it" || c.Fix != "be root" {
		t.Errorf("got %+v", c)
	}
}

// TestSavesOfAnotherUser: a root without CAP_SYS_PTRACE could not read the
// memory of a hypervisor that has an id of its own.
func TestSavesOfAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	const nobody = 65534
	if c := saves(t.Context(), nobody); c.Level != skerry.CheckOK {
		t.Errorf("%s: %s", c.Name, c.Detail)
	}
}
