package skerry

import "time"

// Runner is a host that runs machines, as it last reported itself.
type Runner struct {
	ID          RunnerID  `json:"id"`
	Hostname    string    `json:"hostname"`
	Arch        string    `json:"cpu_arch"`
	Online      bool      `json:"online"`
	LastSeen    time.Time `json:"last_seen"`
	Accel       string    `json:"accelerator" doc:"kvm, or tcg where KVM is not usable."`
	Facts       []Check   `json:"checks"`
	Machines    int       `json:"machines"`
	ReadyPool   int       `json:"ready_pool"`
	CPUs        int       `json:"cpus"`
	MemoryMiB   int64     `json:"memory_mib"`
	DiskFreeMiB int64     `json:"disk_free_mib"`
}

// CheckLevel says how much a failed prerequisite matters.
type CheckLevel string

// The levels: everything is fine; works, but slower or with a limit
// unenforced; sandboxes cannot run.
const (
	CheckOK   CheckLevel = "ok"
	CheckWarn CheckLevel = "warn"
	CheckFail CheckLevel = "fail"
)

// Check is one prerequisite of a host, as `skerry doctor` prints it.
type Check struct {
	Name   string     `json:"name"`
	Level  CheckLevel `json:"level"`
	Detail string     `json:"detail"`
	Fix    string     `json:"fix,omitempty" doc:"What to type."`
}
