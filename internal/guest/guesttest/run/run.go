// Package run is what the test agent and the tests say to each other.
package run

// Request runs a program.
type Request struct {
	ID   string
	Argv []string
	Env  []string
	UID  uint32
}

// Result is how it ended.
type Result struct {
	Output    string
	ExitCode  int
	Signal    int
	OOMKilled bool
	Empty     bool // no descendant was left
	Error     string
}
