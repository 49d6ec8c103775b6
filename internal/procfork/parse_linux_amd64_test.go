package procfork

import (
	"reflect"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParseFDInfo(t *testing.T) {
	for _, tt := range []struct {
		name, info string
		want       openFile
		wrong      bool
	}{
		{name: "file", info: "pos:\t0\nflags:\t0100002\nmnt_id:\t26\nino:\t5\n", want: openFile{flags: unix.O_LARGEFILE | 0o100002}},
		{name: "socket", info: "pos:\t0\nflags:\t02004002\nmnt_id:\t10\n", want: openFile{flags: unix.O_RDWR | unix.O_NONBLOCK | unix.O_CLOEXEC}},
		{name: "eventfd", info: "flags:\t02004002\neventfd-count:              2a\neventfd-id: 7\neventfd-semaphore: 0\n",
			want: openFile{flags: 0o2004002, event: &event{count: 42}}},
		{name: "semaphore", info: "flags:\t02\neventfd-count:               1\neventfd-semaphore: 1\n",
			want: openFile{flags: 2, event: &event{count: 1, semaphore: true}}},
		{name: "kernel before 6.5", info: "flags:\t02\neventfd-count:               0\n", want: openFile{flags: 2, event: &event{}}},
		{name: "others' properties", info: "flags:\t00\ninotify wd:1 ino:2\nfanotify flags:10 event-flags:0\ntfd: 5 events: 19\n", want: openFile{}},
		{name: "empty", want: openFile{}},
		{name: "not octal", info: "flags:\t08\n", wrong: true},
		{name: "not a count", info: "eventfd-count: many\n", wrong: true},
		{name: "semaphore alone", info: "eventfd-semaphore: 1\n", wrong: true},
	} {
		got, err := parseFDInfo(tt.info)
		if (err != nil) != tt.wrong || (err == nil && !reflect.DeepEqual(got, tt.want)) {
			t.Errorf("%s: got %+v, %v, want %+v", tt.name, got, err, tt.want)
		}
	}
}

func FuzzParseFDInfo(f *testing.F) {
	f.Add("pos:\t0\nflags:\t02004002\neventfd-count:               2a\neventfd-semaphore: 1\n")
	f.Add("eventfd-semaphore: 1\n")
	f.Add("flags:\t-1\n:\n")
	f.Fuzz(func(t *testing.T, info string) {
		if got, err := parseFDInfo(info); err == nil && got.event != nil && got.event.semaphore && len(info) < len("eventfd-count:0\neventfd-semaphore:1") {
			t.Errorf("%q: %+v", info, got)
		}
	})
}

// TestRegisters: a thread that waits in a system call is asleep, and makes it
// again, or is told that it was interrupted.
func TestRegisters(t *testing.T) {
	negative := func(n int64) uint64 { return uint64(-n) }
	const call, at = uint64(unix.SYS_PPOLL), uint64(0x1002)
	none := ^uint64(0)
	for _, tt := range []struct {
		name       string
		orig, rax  uint64
		asleep     bool
		rip2, rax2 uint64
	}{
		{"in the program", none, 5, false, at, 5},
		{"in the program, with a value like an error", none, negative(errRestartSys), false, at, negative(errRestartSys)},
		{"restart", call, negative(errRestartSys), true, at - 2, call},
		{"restart without signal handler", call, negative(errRestartNoHand), true, at - 2, call},
		{"restart always", call, negative(errRestartNoIntr), true, at - 2, call},
		{"restart with what is left", call, negative(errRestartRestart), true, at, negative(int64(unix.EINTR))},
		{"interrupted", call, negative(int64(unix.EINTR)), true, at, negative(int64(unix.EINTR))},
		{"done", call, 1, false, at, 1},
		{"failed", call, negative(int64(unix.EAGAIN)), false, at, negative(int64(unix.EAGAIN))},
	} {
		r := unix.PtraceRegs{Orig_rax: tt.orig, Rax: tt.rax, Rip: at, Rdi: 77, Rsp: 99}
		if got := asleep(r); got != tt.asleep {
			t.Errorf("%s: asleep is %t", tt.name, got)
		}
		want := unix.PtraceRegs{Orig_rax: none, Rax: tt.rax2, Rip: tt.rip2, Rdi: 77, Rsp: 99}
		if got := resumed(r); got != want {
			t.Errorf("%s: resumed to %+v, want %+v", tt.name, got, want)
		}
	}
}
