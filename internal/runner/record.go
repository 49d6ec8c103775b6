package runner

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/shim"
)

const (
	recordVersion = 1
	recordFile    = "record.json"
	memoryDir     = "memory" // of a paused sandbox: what Save has written
)

// record is the journal of a persistent sandbox, whose directory outlives its
// machines. It is written before what it says is acted upon, so that a
// successor of this process, or of this host's last boot, knows what the disk
// and the saved memory are good for.
type record struct {
	Version   int              `json:"version"`
	SandboxID skerry.SandboxID `json:"sandbox_id"`
	MachineID skerry.MachineID `json:"machine_id"` // of its present or last life
	// Status is booting while it is made, running while a machine may write to
	// the disk, stopped, or paused: only then the saved memory belongs to the
	// disk.
	Status skerry.Status `json:"status"`
	Reason string        `json:"reason,omitempty"`
	Job    bus.CreateJob `json:"job"`
}

func (r *Runner) sandboxDir(id skerry.SandboxID) string {
	return filepath.Join(r.cfg.Dir, "sandboxes", string(id))
}

func (r *Runner) memoryDir(id skerry.SandboxID) string {
	return filepath.Join(r.sandboxDir(id), memoryDir)
}

// scratchPath is the writable disk of a machine: of a persistent sandbox, or in
// the machine's own directory.
func (r *Runner) scratchPath(s *sandbox) string {
	if s.rec != nil {
		return filepath.Join(r.sandboxDir(s.id), shim.ScratchFile)
	}
	return filepath.Join(r.machineDir(s.machine), shim.ScratchFile)
}

// beginRecord makes the directory of a persistent sandbox that is being made.
func (r *Runner) beginRecord(id skerry.SandboxID, machine skerry.MachineID, job bus.CreateJob) (*record, error) {
	if err := os.Mkdir(r.sandboxDir(id), 0o700); err != nil {
		return nil, err
	}
	rec := &record{Version: recordVersion, SandboxID: id, MachineID: machine, Status: skerry.StatusBooting, Job: job}
	return rec, r.writeRecord(rec)
}

// writeRecord is on the disk when it returns.
func (r *Runner) writeRecord(rec *record) error {
	b, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	return replaceFile(filepath.Join(r.sandboxDir(rec.SandboxID), recordFile), b)
}

// setRecord notes a machine of s and what it is; on an error the record stays what
// it was.
func (r *Runner) setRecord(s *sandbox, status skerry.Status, machine skerry.MachineID, reason string) error {
	next := *s.rec
	next.MachineID = machine
	if err := r.changeRecord(&next, status, reason); err != nil {
		return err
	}
	*s.rec = next
	return nil
}

// noteRecord is setRecord for what a successor finds out by itself, should it
// not come to the disk: that a sandbox does not run any more whose record says
// that it does, or that it still is what its record says.
func (r *Runner) noteRecord(s *sandbox, status skerry.Status, machine skerry.MachineID, reason string) {
	if err := r.setRecord(s, status, machine, reason); err != nil {
		r.log.Error("write record", "sandbox_id", s.id, "status", status, "err", err)
		s.rec.Status, s.rec.MachineID, s.rec.Reason = status, machine, reason
	}
}

func (r *Runner) changeRecord(rec *record, status skerry.Status, reason string) error {
	rec.Status, rec.Reason = status, reason
	if err := r.writeRecord(rec); err != nil {
		return fmt.Errorf("record of sandbox %s: %w", rec.SandboxID, err)
	}
	return nil
}

// readRecords reads the records of all persistent sandboxes. A directory whose
// record was never written is of a create that did not come that far, and is
// removed. One whose record cannot be read has none here, and is left alone: the
// sandbox counts as lost until somebody has mended it, or deletes it.
func (r *Runner) readRecords() (map[skerry.SandboxID]*record, error) {
	entries, err := os.ReadDir(filepath.Join(r.cfg.Dir, "sandboxes"))
	if err != nil {
		return nil, err
	}
	records := map[skerry.SandboxID]*record{}
	for _, e := range entries {
		id := skerry.SandboxID(e.Name())
		if !id.Valid() {
			r.log.Warn("foreign entry among the sandboxes", "name", e.Name())
			continue
		}
		rec, err := readRecord(filepath.Join(r.sandboxDir(id), recordFile))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if err := os.RemoveAll(r.sandboxDir(id)); err != nil {
				return nil, fmt.Errorf("sandbox %s: %w", id, err)
			}
		case err != nil:
			r.log.Error("record of a sandbox cannot be read", "sandbox_id", id, "err", err)
			records[id] = nil
		default:
			records[id] = rec
		}
	}
	return records, nil
}

func readRecord(path string) (*record, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var rec record
	if err := json.Unmarshal(b, &rec); err != nil {
		return nil, err
	}
	if rec.Version != recordVersion {
		return nil, fmt.Errorf("record has version %d, this runner knows %d", rec.Version, recordVersion)
	}
	return &rec, nil
}
