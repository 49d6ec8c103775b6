package pid1

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMonitorThread tells the monitor by what only it does: sleep by
// nanosleep(2) while a goroutine runs. It fails when a release of Go starts its
// threads in another order.
func TestMonitorThread(t *testing.T) {
	tid, err := monitorThread()
	if err != nil {
		t.Fatal(err)
	}
	// The number of the call that the thread is in, proc_pid_syscall(5).
	path := fmt.Sprintf("/proc/self/task/%d/syscall", tid)
	want := fmt.Sprintf("%d ", unix.SYS_NANOSLEEP)
	got := ""
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		text, err := os.ReadFile(path)
		if os.IsNotExist(err) || os.IsPermission(err) {
			t.Skipf("this host does not tell system calls: %v", err)
		}
		if err != nil {
			t.Fatal(err)
		}
		if got = string(text); strings.HasPrefix(got, want) {
			return
		}
	}
	t.Errorf("thread %d is in %q, want %q", tid, got, want)
}
