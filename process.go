package skerry

import "time"

// The types of this file are the process protocol of the toolbox, in the wire
// spelling of the public Daytona toolbox API (process v2). Fields marked ours
// are additions.

// ProcessRequest starts a process: exactly one of Argv and ShellCommand.
type ProcessRequest struct {
	Argv         []string          `json:"argv,omitempty"`
	ShellCommand string            `json:"shellCommand,omitempty"`
	Shell        string            `json:"shell,omitempty"` // auto, sh, bash, zsh
	Login        bool              `json:"login,omitempty"`
	Name         string            `json:"name,omitempty"`
	SessionID    string            `json:"sessionId,omitempty"`
	Cwd          string            `json:"cwd,omitempty"`
	Env          map[string]string `json:"env,omitempty"`
	User         string            `json:"user,omitempty"`
	Stdin        string            `json:"stdin,omitempty"` // none (default), pipe
	TimeoutMs    int64             `json:"timeoutMs,omitempty"`
	Kind         string            `json:"kind,omitempty"` // exec (default), pty, code
	Terminal     *Terminal         `json:"terminal,omitempty"`
	KeepLogs     string            `json:"keepLogs,omitempty"` // until_cleanup, on_exit_ttl, none
}

// Terminal is the size of a pseudo terminal in characters.
type Terminal struct {
	Cols int    `json:"cols"`
	Rows int    `json:"rows"`
	Term string `json:"term,omitempty"`
}

// Reasons why a process is over.
const (
	ReasonExited         = "exited"
	ReasonSignaled       = "signaled"
	ReasonTimedOut       = "timed_out"
	ReasonSandboxStopped = "sandbox_stopped"
	ReasonFailed         = "failed"
)

// Process is a process started through the toolbox.
type Process struct {
	ID            ProcessID         `json:"id"`
	Kind          string            `json:"kind"`
	State         string            `json:"state"` // running, terminal
	CreatedAt     time.Time         `json:"createdAt"`
	StartedAt     *time.Time        `json:"startedAt,omitempty"`
	ExitedAt      *time.Time        `json:"exitedAt,omitempty"`
	PID           int               `json:"pid,omitempty"`
	Argv          []string          `json:"argv,omitempty"`
	ShellCommand  string            `json:"shellCommand,omitempty"`
	Shell         string            `json:"shell,omitempty"`
	ResolvedShell string            `json:"resolvedShell,omitempty"`
	Cwd           string            `json:"cwd,omitempty"`
	Env           map[string]string `json:"env,omitempty"`
	User          string            `json:"user,omitempty"`
	Login         bool              `json:"login,omitempty"`
	Name          string            `json:"name,omitempty"`
	SessionID     string            `json:"sessionId,omitempty"`
	Stdin         string            `json:"stdin,omitempty"`
	Terminal      *Terminal         `json:"terminal,omitempty"`
	TimeoutMs     int64             `json:"timeoutMs,omitempty"`
	KeepLogs      string            `json:"keepLogs,omitempty"`
	System        bool              `json:"system,omitempty"`

	ProcessResult

	FirstAvailableCursor string `json:"firstAvailableCursor,omitempty"`
	LastCursor           string `json:"lastCursor,omitempty"`
	TruncatedHead        bool   `json:"truncatedHead,omitempty"`
}

// ProcessResult is how a process ended. ExitCode is nil until the agent has
// seen the end; a result without ExitCode and Signal never means success.
type ProcessResult struct {
	Reason   string `json:"reason,omitempty"`
	ExitCode *int   `json:"exitCode,omitempty"` // 128+n when signal n ended it
	Signal   string `json:"signal,omitempty"`   // "KILL"
	// OOMKilled is true when the kernel killed it for want of memory (ours).
	OOMKilled bool `json:"oomKilled,omitempty"`
	// Error says why the process could not be started or was lost (ours).
	Error string `json:"error,omitempty"`
}

// LogFrame is one piece of a process's output.
type LogFrame struct {
	Seq       int64     `json:"seq"`
	Cursor    string    `json:"cursor"`
	Channel   string    `json:"channel"` // stdout, stderr, pty, system
	Timestamp time.Time `json:"timestamp"`
	Data      string    `json:"data,omitempty"`
	Encoding  string    `json:"encoding,omitempty"` // text, base64
}

// LogPage is a page of a process's output.
type LogPage struct {
	Frames               []LogFrame `json:"frames"`
	NextCursor           string     `json:"nextCursor,omitempty"`
	EOF                  bool       `json:"eof,omitempty"`
	TruncatedHead        bool       `json:"truncatedHead,omitempty"`
	FirstAvailableCursor string     `json:"firstAvailableCursor,omitempty"`
}

// ExecuteRequest is the buffered form: POST /process/execute.
type ExecuteRequest struct {
	Command string            `json:"command"`
	Argv    []string          `json:"argv,omitempty"` // ours: instead of command
	Cwd     string            `json:"cwd,omitempty"`
	Envs    map[string]string `json:"envs,omitempty"`
	User    string            `json:"user,omitempty"`    // ours
	Stdin   string            `json:"stdin,omitempty"`   // ours
	Timeout int               `json:"timeout,omitempty"` // seconds
	// Streams is ours. One pipe can keep the order of two streams, or two
	// pipes can keep them apart, but not both: "combined" (default with
	// command) gives Result in the exact order of emission and no Stdout and
	// Stderr; "separate" (default with argv) gives all three, Result in the
	// order of arrival.
	Streams string `json:"streams,omitempty"`
}

// Values of ExecuteRequest.Streams.
const (
	StreamsCombined = "combined"
	StreamsSeparate = "separate"
)

// ExecuteResponse is the result of the buffered form. Result holds stdout and
// stderr in the order of emission. Of a stream that is too long the head and the
// tail are kept, with "[… N bytes truncated …]" on a line of its own between.
type ExecuteResponse struct {
	ExitCode int    `json:"exitCode"`
	Result   string `json:"result"`
	// Ours: the streams apart (see ExecuteRequest.Streams), how it ended, and
	// how many bytes of the middle of each were dropped.
	Stdout               string `json:"stdout"`
	Stderr               string `json:"stderr"`
	Reason               string `json:"reason"`
	Signal               string `json:"signal,omitempty"`
	OOMKilled            bool   `json:"oomKilled,omitempty"`
	TruncatedBytes       int64  `json:"truncatedBytes,omitempty"`
	TruncatedStdoutBytes int64  `json:"truncatedStdoutBytes,omitempty"`
	TruncatedStderrBytes int64  `json:"truncatedStderrBytes,omitempty"`
}

// FileInfo describes a file in a sandbox.
type FileInfo struct {
	Name        string    `json:"name"`
	Path        string    `json:"path,omitempty"`
	IsDir       bool      `json:"isDir"`
	Size        int64     `json:"size"`
	Mode        string    `json:"mode"`        // "-rw-r--r--"
	Permissions string    `json:"permissions"` // octal, "0644"
	Owner       string    `json:"owner"`
	Group       string    `json:"group"`
	ModTime     string    `json:"modTime"`
	ModifiedAt  time.Time `json:"modifiedAt"`
	LinkTarget  string    `json:"linkTarget,omitempty"` // ours
}

// ToolboxError is the error body of the toolbox.
type ToolboxError struct {
	StatusCode int       `json:"statusCode"`
	Message    string    `json:"message"`
	Path       string    `json:"path"`
	Method     string    `json:"method,omitempty"`
	Code       string    `json:"code,omitempty"`
	Source     string    `json:"source,omitempty"`
	Timestamp  time.Time `json:"timestamp"`
	// Execution is ours: with ToolboxExecTimeout, how the command of POST
	// /process/execute ended, and all that it had put out by then.
	Execution *ExecuteResponse `json:"execution,omitempty"`
}

func (e *ToolboxError) Error() string { return e.Message }

// Codes of ToolboxError. The first block is Daytona's, the second ours.
const (
	ToolboxInvalidBody     = "INVALID_REQUEST_BODY"      // 400
	ToolboxExecTimeout     = "PROCESS_EXECUTION_TIMEOUT" // 408
	ToolboxProcessNotFound = "PROCESS_NOT_FOUND"         // 404
	ToolboxFileNotFound    = "FILE_NOT_FOUND"            // 404
	ToolboxAccessDenied    = "FILE_ACCESS_DENIED"        // 403
	ToolboxInvalidPath     = "INVALID_FILE_PATH"         // 400
	ToolboxReadFailed      = "FILE_READ_FAILED"          // 500
	ToolboxCursorExpired   = "CURSOR_EXPIRED"            // 409

	ToolboxInvalidQuery    = "INVALID_REQUEST_QUERY" // 400
	ToolboxNotActive       = "NOT_ACTIVE"            // 503: the sandbox is not up yet or is going down
	ToolboxNoRoute         = "ROUTE_NOT_FOUND"       // 404, 405
	ToolboxUnknownUser     = "USER_NOT_FOUND"        // 400
	ToolboxInvalidCwd      = "INVALID_CWD"           // 400
	ToolboxNoShell         = "SHELL_NOT_FOUND"       // 400: the image has none; use argv
	ToolboxProcessLimit    = "PROCESS_LIMIT"         // 409: too many run at once
	ToolboxProcessState    = "PROCESS_STATE"         // 409: not while it is running, or terminal
	ToolboxStdinClosed     = "STDIN_CLOSED"          // 409
	ToolboxInvalidCursor   = "INVALID_CURSOR"        // 400
	ToolboxFileExists      = "FILE_EXISTS"           // 409
	ToolboxNoSpace         = "NO_SPACE"              // 507
	ToolboxFileWriteFailed = "FILE_WRITE_FAILED"     // 500
	ToolboxInvalidArchive  = "INVALID_ARCHIVE"       // 400; the message names the entry
	ToolboxTooLarge        = "TOO_LARGE"             // 413
	ToolboxInternal        = "INTERNAL"              // 500
	ToolboxErrorSource     = "DAYTONA_DAEMON"        // ToolboxError.Source, what Daytona's clients look for
)
