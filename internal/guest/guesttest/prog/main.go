// Prog is the only program of the test images: it shows a system from inside
// without a shell.
package main

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func run(name string, args []string) error {
	switch name {
	case "true":
		return nil
	case "exit":
		code, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		os.Exit(code)
	case "cat":
		for _, path := range args {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Print(string(text))
		}
	case "ls":
		entries, err := os.ReadDir(args[0])
		for _, e := range entries {
			fmt.Println(e.Name())
		}
		return err
	case "stat":
		return stat(args)
	case "write":
		return os.WriteFile(args[0], []byte(args[1]), 0o644)
	case "env":
		for _, variable := range os.Environ() {
			fmt.Println(variable)
		}
	case "facts":
		return facts()
	case "waiting":
		return waiting(args[0])
	case "tick":
		return tick()
	case "count":
		return count(args[0], args[1])
	case "swallow":
		return swallow(args[0])
	case "fill":
		return fill(args[0], args[1])
	case "sum":
		return sum(args[0])
	case "save":
		return save(args[0], args[1])
	case "loop":
		return loop(args[0])
	case "nproc":
		fmt.Println(runtime.NumCPU())
	case "orphans":
		return orphans(args[0])
	case "zombies":
		return zombies()
	case "hog":
		hog()
	case "forkbomb":
		forkBomb()
	case "sleep":
		time.Sleep(time.Hour)
	case "listen":
		return echo(args[0])
	case "mount":
		return unix.Mount(args[0], args[1], args[2], unix.MS_RDONLY, "")
	default:
		return fmt.Errorf("no command %q", name)
	}
	return nil
}

// echo serves one connection.
func echo(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	conn, err := l.Accept()
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = io.Copy(conn, conn)
	return err
}

func stat(paths []string) error {
	for _, path := range paths {
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		fmt.Printf("%s %v\n", path, info.Mode())
	}
	return nil
}

// Facts are what must differ or agree between machines.
type Facts struct {
	Random   string
	UnixNano int64
	Hostname string
}

func facts() error {
	random := make([]byte, 16)
	if _, err := rand.Read(random); err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(Facts{fmt.Sprintf("%x", random), time.Now().UnixNano(), host})
}

// orphans starts n programs through a child that ends at once.
func orphans(n string) error {
	count, err := strconv.Atoi(n)
	if err != nil {
		return err
	}
	for range count {
		cmd := exec.Command("/prog", "true")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil { // never waited for
			return err
		}
	}
	return nil
}

// zombies prints how many there are.
func zombies() error {
	stats, err := fs.Glob(os.DirFS("/proc"), "[0-9]*/stat")
	if err != nil {
		return err
	}
	n := 0
	for _, path := range stats {
		text, err := os.ReadFile("/proc/" + path)
		if err != nil {
			continue
		}
		var pid int
		var comm, state string
		if _, err := fmt.Sscan(string(text), &pid, &comm, &state); err == nil && state == "Z" {
			n++
		}
	}
	fmt.Println(n)
	return nil
}

func hog() {
	var all [][]byte
	for {
		b := make([]byte, 8<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		all = append(all, b)
		_ = all
	}
}

func forkBomb() {
	for {
		cmd := exec.Command("/prog", "forkbomb")
		if err := cmd.Start(); err != nil {
			time.Sleep(time.Hour)
		}
	}
}
