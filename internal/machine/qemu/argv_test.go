package qemu

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"skerry.dev/skerry/internal/machine"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestArgv compares command lines with testdata/argv.txtar.
func TestArgv(t *testing.T) {
	base := New(Options{PortName: "org.example.port"}).layout(machine.Shape{VCPUs: 2, BaseMiB: 256, MaxMemMiB: 4096})
	base.monitorFD, base.consoleFD, base.controlFD, base.ramFD = 3, 4, 5, 6

	capture := base
	capture.listen, capture.kernelFD, capture.initrdFD = true, 7, 8
	capture.kernelArgs = "console=ttyS0 quiet"

	restore := base
	restore.restore, restore.netFD, restore.scratchFD = true, 7, 8
	restore.imageFDs, restore.imageVMDK = []int{9, 10}, 11

	fixed := restore
	fixed.shape.MaxMemMiB = 256
	fixed.accel, fixed.cpu = "kvm", "host"

	path := filepath.Join("testdata", "argv.txtar")
	got := &txtar.Archive{Comment: []byte("QEMU's command line by situation, one argument a line.\n\n")}
	for _, c := range []struct {
		name string
		l    layout
	}{{"capture", capture}, {"restore", restore}, {"restore-kvm-no-pluggable-memory", fixed}} {
		got.Files = append(got.Files, txtar.File{Name: c.name, Data: []byte(strings.Join(c.l.argv(), "\n") + "\n")})
	}
	if *update {
		if err := os.WriteFile(path, txtar.Format(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(txtar.Format(got))); diff != "" {
		t.Errorf("command line changed, which makes all templates anew (-want +got); if that is meant, run with -update:\n%s", diff)
	}
}

func TestVMDK(t *testing.T) {
	got := vmdk([]machine.Extent{{Path: "/secret/\"a", Sectors: 8}, {Path: "/b", Sectors: 16}})
	want := `# Disk DescriptorFile
version=1
CID=fffffffe
parentCID=ffffffff
createType="twoGbMaxExtentFlat"
RW 8 FLAT "/dev/fdset/16" 0
RW 16 FLAT "/dev/fdset/17" 0
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
