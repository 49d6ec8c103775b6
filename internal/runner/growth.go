package runner

import (
	"errors"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/shim/growth"
)

// memoryLedger is the file, in the data directory, by which this host's memory is
// guaranteed here and lent to machines that grow, by their shims.
const memoryLedger = "memory.ledger"

// errNoRoom puts a job back on the queue: this host has not enough memory left.
var errNoRoom = errors.New("no room for the sandbox")

// guaranteeLocked sets the memory that is guaranteed to all sandboxes together,
// or fails with errNoRoom. A host takes at least one sandbox, however small it is,
// and what is there already is there.
func (r *Runner) guaranteeLocked(totalMiB int64, forced bool) error {
	err := r.ledger.Guarantee(totalMiB, forced || r.reserved == 0)
	if errors.Is(err, growth.ErrNoRoom) {
		return errNoRoom
	}
	if err != nil {
		if !forced {
			return err
		}
		r.log.Error("memory ledger", "err", err)
	}
	r.reserved = totalMiB
	return nil
}

// memoryLimitMiB is how far a machine of this host may grow: 0 is not at all.
func memoryLimitMiB(res skerry.Resources) int64 {
	if limit := res.MemoryLimitMiB(); limit > res.MemoryMiB {
		return limit
	}
	return 0
}

// checkDisk refuses a sandbox whose guaranteed disk the host does not have. It is
// checked once: what others write later is not held back.
func checkDisk(res skerry.Resources, freeMiB int64) error {
	if res.DiskMiB > freeMiB {
		return skerry.Errorf(skerry.CodeExhausted, "resources.disk: %d MiB are to be guaranteed, the host's disk has %d MiB left", res.DiskMiB, freeMiB)
	}
	return nil
}
