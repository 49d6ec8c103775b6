package runner

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"skerry.dev/skerry"
)

// TestPlaceWithoutParent: the group above the machines' is empty between
// sandboxes, and something on the host may remove it then.
func TestPlaceWithoutParent(t *testing.T) {
	c := OpenCgroups(fmt.Sprintf("test-%d", os.Getpid()))
	if ok, why := c.Enforced(); !ok {
		t.Skipf("needs the right to make control groups: %s", why)
	}
	defer c.Close()
	if err := os.Remove(c.root); err != nil {
		t.Fatal(err)
	}
	program := exec.Command("sleep", "60")
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	id := skerry.NewMachineID()
	unenforced, err := c.place(id, program.Process.Pid, skerry.Resources{CPU: 1})
	if err != nil || len(unenforced) > 0 {
		t.Errorf("place: %v, unenforced %v", err, unenforced)
	}
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", program.Process.Pid))
	if err != nil || !strings.Contains(string(groups), string(id)) {
		t.Errorf("the process is not in its group: %v\n%s", err, groups)
	}
	program.Process.Kill()
	program.Wait()
	if err := c.remove(id); err != nil {
		t.Error(err)
	}
}
