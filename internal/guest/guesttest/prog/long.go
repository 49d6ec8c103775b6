package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Tick is what tick sees at one moment.
type Tick struct {
	Seq       int
	Random    string // getrandom(2)
	UUID      string
	MachineID string
	Hostname  string
	HostFile  string
	BootID    string
	Wall      int64 // nanoseconds
	Monotonic int64
}

// tick prints what it sees, until it is ended.
func tick() error {
	out := json.NewEncoder(os.Stdout)
	for seq := 1; ; seq++ {
		t := Tick{Seq: seq}
		random := make([]byte, 16)
		if _, err := unix.Getrandom(random, 0); err != nil {
			return err
		}
		t.Random = fmt.Sprintf("%x", random)
		for path, to := range map[string]*string{
			"/proc/sys/kernel/random/uuid": &t.UUID, "/etc/machine-id": &t.MachineID, "/proc/sys/kernel/hostname": &t.Hostname,
			"/etc/hostname": &t.HostFile, "/proc/sys/kernel/random/boot_id": &t.BootID,
		} {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			*to = strings.TrimSpace(string(text))
		}
		var wall, mono unix.Timespec
		if err := errors.Join(unix.ClockGettime(unix.CLOCK_REALTIME, &wall), unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono)); err != nil {
			return err
		}
		t.Wall, t.Monotonic = wall.Nano(), mono.Nano()
		if err := out.Encode(t); err != nil {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// await waits for a file.
func await(path string) {
	for {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// count prints the numbers from 1 to n; half way it waits for a file.
func count(n, path string) error {
	last, err := strconv.Atoi(n)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(os.Stdout)
	for i := 1; i <= last; i++ {
		fmt.Fprintf(out, "%d\n", i)
		if i == last/2 {
			if err := out.Flush(); err != nil {
				return err
			}
			await(path)
		}
	}
	return out.Flush()
}

// swallow prints, after a file is there, how many bytes its input has.
func swallow(path string) error {
	await(path)
	n, err := io.Copy(io.Discard, os.Stdin)
	fmt.Println(n)
	return err
}

// fill writes a file of n MiB under another name and renames it, without
// waiting for the disk, and gives it an owner, a mode and an attribute.
func fill(path, n string) error {
	mib, err := strconv.Atoi(n)
	if err != nil {
		return err
	}
	f, err := os.Create(path + ".new")
	if err != nil {
		return err
	}
	defer f.Close()
	block := make([]byte, 1<<20)
	for i := range mib {
		for j := range block {
			block[j] = byte(i * j)
		}
		if _, err := f.Write(block); err != nil {
			return err
		}
	}
	return errors.Join(f.Chown(1000, 1001), f.Chmod(0o4751), unix.Fsetxattr(int(f.Fd()), "user.note", []byte("kept"), 0),
		os.Rename(path+".new", path))
}

// sum prints what fill has made of a file.
func sum(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return err
	}
	note := make([]byte, 16)
	n, err := unix.Getxattr(path, "user.note", note)
	fmt.Printf("%x %o %d:%d %s\n", sha256.Sum256(text), st.Mode, st.Uid, st.Gid, note[:max(n, 0)])
	return err
}

// save writes a file and waits until it is on the disk.
func save(path, text string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		return err
	}
	return f.Sync()
}

// loop makes a loop device of a new file, which then stays open in the kernel.
func loop(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(1 << 20); err != nil {
		return err
	}
	if err := unix.Mknod("/dev/loop-control", unix.S_IFCHR|0o600, int(unix.Mkdev(10, 237))); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer control.Close()
	n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return err
	}
	device, err := os.OpenFile("/dev/loop"+strconv.Itoa(n), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer device.Close()
	return unix.IoctlSetInt(int(device.Fd()), unix.LOOP_SET_FD, int(f.Fd()))
}

// waiting prints whether a thread of a process is in uninterruptible sleep.
func waiting(pid string) error {
	stats, err := fs.Glob(os.DirFS("/proc"), pid+"/task/[0-9]*/stat")
	if err != nil {
		return err
	}
	for _, path := range stats {
		text, err := os.ReadFile("/proc/" + path)
		if err == nil && strings.Contains(string(text), ") D ") {
			fmt.Println(true)
			return nil
		}
	}
	fmt.Println(false)
	return nil
}
