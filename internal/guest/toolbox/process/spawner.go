package process

import (
	"os"
	"syscall"
)

// A Spawner starts processes, each in a control group of its own. There is one
// for ordinary hosts (Host) and one in the guest agent, where PID 1 owns
// wait4(2).
type Spawner interface {
	// Start starts a process. It returns once the program is executing, or
	// with the error of the step that did not work: an *os.PathError whose
	// Err is the errno of fork(2), chdir(2) or execve(2). No process and no
	// control group is left behind by an error.
	Start(spec *Spec) (Child, error)
}

// Spec is what a Spawner is asked to start.
type Spec struct {
	// ID names the process.
	ID string
	// Path is the absolute path of the program.
	Path string
	Argv []string // Argv[0] included
	Env  []string // the whole environment, KEY=value, no duplicates
	Dir  string   // absolute; entered with the rights of UID

	UID    uint32
	GID    uint32
	Groups []uint32 // supplementary groups, the whole list

	// Files are the child's descriptors 0, 1 and 2. The caller keeps them.
	Files [3]*os.File
	// Terminal says that Files[0] is a terminal that becomes the
	// controlling one. The child always leads a session of its own.
	Terminal bool
}

// Child is a process started by a Spawner, together with all its descendants
// (the group). All methods may be called at the same time.
type Child interface {
	// PID is the process's number; it is its session's and process group's
	// number too.
	PID() int

	// Wait blocks until the process (not its descendants) has ended and
	// returns how. It is called exactly once. An error means that the end is
	// not known: it is never success.
	Wait() (Status, error)

	// Signal sends a signal to the process group the process leads. After
	// the process has been waited for it returns os.ErrProcessDone.
	Signal(sig syscall.Signal) error

	// SignalAll sends a signal to each process of the group, those with a
	// session of their own too, also after the process has ended. SIGKILL
	// leaves none, however fast they fork.
	SignalAll(sig syscall.Signal) error

	// Empty reports whether no process of the group is left. A zombie that
	// nobody has waited for does not count.
	Empty() bool

	// Release says that the caller is done with the group. Processes that
	// are left in it run on; the Spawner removes the group when it is empty.
	// Only Release is legal after Release.
	Release()
}

// Status is how a process ended.
type Status struct {
	Wait      syscall.WaitStatus
	OOMKilled bool // the kernel killed a process of the group for want of memory
}
