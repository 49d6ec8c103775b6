package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// guest is what commands leave behind.
type guest struct {
	memory []byte // of alloc
	seed   uint64
	worker *worker // of work, or nil
}

// answer carries out one command: "ok …" or "error …".
func (g *guest) answer(line string) string {
	name, rest, _ := strings.Cut(line, " ")
	commands := map[string]func([]string) (string, error){
		"online":  g.online,
		"memory":  g.memTotal,
		"size":    g.size,
		"write":   g.write,
		"read":    g.read,
		"discard": g.discard,
		"alloc":   g.alloc,
		"check":   g.check,
		"free":    g.free,
		"console": g.console,
		"clear":   g.clear,
		"work":    g.work,
		"rounds":  g.rounds,
		"stopped": g.stopped,
		"flood":   g.flood,
		"off":     func([]string) (string, error) { return "", unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF) },
		"reboot":  func([]string) (string, error) { return "", unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART) },
	}
	if name == "echo" {
		return "ok " + rest
	}
	f, ok := commands[name]
	if !ok {
		return "error unknown command " + name
	}
	out, err := f(strings.Fields(rest))
	if err != nil {
		return "error " + strings.ReplaceAll(err.Error(), "\n", " ")
	}
	return "ok " + out
}

// online: the processors that run.
func (g *guest) online([]string) (string, error) {
	b, err := os.ReadFile("/sys/devices/system/cpu/online")
	return strings.TrimSpace(string(b)), err
}

// memory: MemTotal in MiB.
func (g *guest) memTotal([]string) (string, error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return "", err
	}
	f := strings.Fields(string(b)) // "MemTotal:  217 kB …"
	kib, err := strconv.Atoi(f[1])
	return strconv.Itoa(kib / 1024), err
}

// size DISK: bytes.
func (g *guest) size(a []string) (string, error) {
	b, err := os.ReadFile("/sys/block/" + a[0] + "/size")
	if err != nil {
		return "", err
	}
	sectors, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return strconv.FormatInt(sectors*512, 10), err
}

// openDisk opens a disk past the page cache, so that each request reaches the
// device.
func openDisk(name string) (int, error) {
	return unix.Open("/dev/"+name, unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0)
}

// write DISK SECTOR TEXT: one sector, even where the kernel thinks that the
// disk has ended.
func (g *guest) write(a []string) (string, error) {
	fd, err := openDisk(a[0])
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	sector, err := strconv.ParseInt(a[1], 10, 64)
	if err != nil {
		return "", err
	}
	buf := page()
	copy(buf, a[2])
	if _, err := unix.Pwrite(fd, buf[:512], sector*512); err != nil {
		return "", err
	}
	return "", unix.Fsync(fd)
}

// read DISK SECTOR: the text that write put there.
func (g *guest) read(a []string) (string, error) {
	fd, err := unix.Open("/dev/"+a[0], unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	sector, err := strconv.ParseInt(a[1], 10, 64)
	if err != nil {
		return "", err
	}
	buf := page()
	n, err := unix.Pread(fd, buf[:512], sector*512)
	if err == nil && n != 512 {
		err = fmt.Errorf("read %d bytes", n)
	}
	return strings.TrimRight(string(buf[:max(n, 0)]), "\x00"), err
}

// page is memory aligned as O_DIRECT wants.
func page() []byte {
	b, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		panic(err)
	}
	return b
}

// discard DISK OFFSET LENGTH
func (g *guest) discard(a []string) (string, error) {
	fd, err := openDisk(a[0])
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	off, _ := strconv.ParseUint(a[1], 10, 64)
	n, _ := strconv.ParseUint(a[2], 10, 64)
	return "", blkDiscard(fd, [2]uint64{off, n})
}

// alloc MIB SEED: fill memory with a pattern.
func (g *guest) alloc(a []string) (string, error) {
	mib, err := strconv.Atoi(a[0])
	if err != nil {
		return "", err
	}
	if g.seed, err = strconv.ParseUint(a[1], 10, 64); err != nil {
		return "", err
	}
	if g.memory, err = unix.Mmap(-1, 0, mib<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON); err != nil {
		return "", err
	}
	for i := 0; i < len(g.memory); i += 4096 {
		binary.LittleEndian.PutUint64(g.memory[i:], g.seed^uint64(i))
	}
	return "", nil
}

// check: is the pattern still there?
func (g *guest) check([]string) (string, error) {
	wrong := 0
	for i := 0; i < len(g.memory); i += 4096 {
		if binary.LittleEndian.Uint64(g.memory[i:]) != g.seed^uint64(i) {
			wrong++
		}
	}
	if wrong > 0 {
		return "", fmt.Errorf("%d of %d pages are wrong", wrong, len(g.memory)/4096)
	}
	return strconv.Itoa(len(g.memory) >> 20), nil
}

func (g *guest) free([]string) (string, error) {
	if g.memory == nil {
		return "", errors.New("nothing is allocated")
	}
	err := unix.Munmap(g.memory)
	g.memory = nil
	return "", err
}

// console BYTES: write so much to the serial console.
func (g *guest) console(a []string) (string, error) {
	n, err := strconv.Atoi(a[0])
	if err != nil {
		return "", err
	}
	f, err := os.OpenFile("/dev/console", os.O_WRONLY, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	_, err = f.WriteString(strings.Repeat(strings.Repeat("x", 63)+"\n", n/64))
	return "", err
}

// flood BYTES: answer with so much.
func (g *guest) flood(a []string) (string, error) {
	n, err := strconv.Atoi(a[0])
	return strings.Repeat("f", n), err
}

// clear MIB: milliseconds to read so much of /dev/zero, which the kernel
// clears page by page; for measurements only.
func (g *guest) clear(a []string) (string, error) {
	mib, err := strconv.Atoi(a[0])
	if err != nil {
		return "", err
	}
	f, err := os.Open("/dev/zero")
	if err != nil {
		return "", err
	}
	defer f.Close()
	buf := make([]byte, 1<<20)
	begin := time.Now()
	for range mib {
		if _, err := f.Read(buf); err != nil {
			return "", err
		}
	}
	return strconv.FormatInt(time.Since(begin).Milliseconds(), 10), nil
}
