package runner

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
)

func recordRunner(t *testing.T) *Runner {
	t.Helper()
	r := &Runner{cfg: Config{Dir: t.TempDir()}, log: slog.New(slog.DiscardHandler), memories: newMemories()}
	if err := os.Mkdir(filepath.Join(r.cfg.Dir, "sandboxes"), 0o700); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRecordIsReadAsWritten(t *testing.T) {
	r := recordRunner(t)
	id, m1, m2 := skerry.NewSandboxID(), skerry.MachineID("mch_aaaaaaaaaaaaaaaaaaaa"), skerry.MachineID("mch_bbbbbbbbbbbbbbbbbbbb")
	job := bus.CreateJob{SandboxID: id, Name: "n", Digest: "sha256:x", Env: map[string]string{"A": "1"}, Resources: skerry.Resources{CPU: 0.5, MemoryMiB: 512, DiskMiB: 512}, Persistent: true}
	rec, err := r.beginRecord(id, m1, job)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.beginRecord(id, m1, job); err == nil {
		t.Error("a second record of one sandbox was begun")
	}
	s := &sandbox{id: id, rec: rec}
	if err := r.setRecord(s, skerry.StatusStopped, m2, "why"); err != nil {
		t.Fatal(err)
	}
	records, err := r.readRecords()
	if err != nil {
		t.Fatal(err)
	}
	want := map[skerry.SandboxID]*record{id: {Version: recordVersion, SandboxID: id, MachineID: m2, Status: skerry.StatusStopped, Reason: "why", Job: job}}
	if diff := cmp.Diff(want, records); diff != "" {
		t.Errorf("records differ (-want +got):\n%s", diff)
	}
}

// TestUnfinishedRecord: a crash between the directory and its record leaves
// nothing; a record that cannot be read is left alone and harms no other.
func TestUnfinishedRecord(t *testing.T) {
	r := recordRunner(t)
	empty := skerry.NewSandboxID()
	if err := os.Mkdir(r.sandboxDir(empty), 0o700); err != nil {
		t.Fatal(err)
	}
	if records, err := r.readRecords(); err != nil || len(records) != 0 {
		t.Errorf("records %v, %v; want none", records, err)
	}
	if _, err := os.Stat(r.sandboxDir(empty)); !os.IsNotExist(err) {
		t.Errorf("the unfinished directory is still there: %v", err)
	}
	for name, content := range map[string]string{"garbage": "{", "newer": `{"version":999}`} {
		t.Run(name, func(t *testing.T) {
			r := recordRunner(t)
			id := skerry.NewSandboxID()
			if err := os.Mkdir(r.sandboxDir(id), 0o700); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(r.sandboxDir(id), recordFile)
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			records, err := r.readRecords()
			if rec, kept := records[id]; err != nil || !kept || rec != nil || len(records) != 1 {
				t.Errorf("records %v, %v; want that of a sandbox without one", records, err)
			}
			if _, err := os.Stat(path); err != nil {
				t.Errorf("it was removed: %v", err)
			}
		})
	}
}
