// Package guesttest boots the guest agent in a real machine for tests.
package guesttest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"skerry.dev/skerry/internal/guest/guesttest/run"
	"skerry.dev/skerry/internal/guestapi"
	"skerry.dev/skerry/internal/kernel"
)

// KernelEnv names the directory of the kernel for tests.
const KernelEnv = "SKERRY_TEST_KERNEL_DIR"

// Kernel returns the kernel for tests: that of the directory KernelEnv names, or
// of the cache directory that make setup fills.
func Kernel(t testing.TB) *kernel.Kernel {
	t.Helper()
	dir := os.Getenv(KernelEnv)
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		dir = filepath.Join(cache, "skerry", "kernel")
	}
	k, err := kernel.Open(dir)
	if err != nil {
		t.Fatalf("no guest kernel for tests: %v\ntype: make setup\n(or set %s to a directory that kernel.Unpack made)", err, KernelEnv)
	}
	return k
}

// Build builds a static program of this module for the guest in dir and returns
// its path. It panics if that is not possible.
func Build(dir, pkg string) string {
	out := filepath.Join(dir, filepath.Base(pkg))
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", out, "skerry.dev/skerry/"+pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOFLAGS=")
	if text, err := cmd.CombinedOutput(); err != nil {
		panic(fmt.Sprintf("go build %s: %v\n%s", pkg, err, text))
	}
	return out
}

// Options describe a machine. Zero values are usable.
type Options struct {
	Agent     string   // path of the agent's binary
	Layers    []string // directories, bottom layer first
	MemoryMiB int      // 256 if 0
	VCPUs     int      // 1 if 0
	Args      []string // more arguments of QEMU
	Cmdline   string   // more kernel parameters
	Template  bool     // the machine can be captured
	// Scratch is the writable disk, which is used as it is; a new one if "".
	Scratch string
}

// VM is a machine that said hello.
type VM struct {
	*guestapi.Link
	Hello    guestapi.Hello
	BootTime time.Duration // from the start of QEMU to Hello
	Dir      string
	t        testing.TB
	qemu     *exec.Cmd
	exited   chan struct{}
	scratch  int64 // sectors
	options  Options
}

// Console returns what the machine has printed.
func (vm *VM) Console() string {
	text, err := os.ReadFile(filepath.Join(vm.Dir, "console"))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Exited is closed when QEMU has ended.
func (vm *VM) Exited() <-chan struct{} { return vm.exited }

// Socket is the path of the agent port's socket.
func (vm *VM) Socket() string { return filepath.Join(vm.Dir, "control") }

// Boot boots a machine and waits for the agent. The test's end kills it.
func Boot(t testing.TB, o Options) *VM {
	t.Helper()
	vm := &VM{t: t, Dir: t.TempDir(), exited: make(chan struct{}), options: o}
	k := Kernel(t)
	boot := vm.makeDisks(k, o)
	agent, err := os.ReadFile(o.Agent)
	if err != nil {
		t.Fatal(err)
	}
	var initramfs bytes.Buffer
	if err := kernel.BuildInitramfs(k, agent, &initramfs); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(vm.Dir, "initramfs"), initramfs.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	param, err := boot.CommandLine()
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	vm.start(k, kernel.CommandLine("tcg")+" "+o.Cmdline+" "+param)
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	vm.Dial(ctx)
	if err := vm.Control(ctx, guestapi.PathHello, nil, &vm.Hello); err != nil {
		t.Fatalf("%v\nconsole:\n%s", err, vm.Console())
	}
	vm.BootTime = time.Since(start)
	return vm
}

func (vm *VM) start(k *kernel.Kernel, cmdline string, more ...string) {
	vm.t.Helper()
	o := vm.options
	arg := func(name string) string { return filepath.Join(vm.Dir, name) }
	vm.qemu = exec.Command("qemu-system-"+map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH],
		"-M", "q35,sata=off,smbus=off,i8042=off,hpet=on,vmport=off,usb=off,graphics=off",
		"-accel", "tcg,thread=multi,tb-size=128", "-cpu", "Nehalem", "-smp", fmt.Sprint(max(o.VCPUs, 1)),
		"-m", fmt.Sprintf("%dM", max(o.MemoryMiB, 256)), "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-serial", "file:"+arg("console"),
		"-kernel", k.ImagePath, "-initrd", arg("initramfs"), "-append", cmdline,
		"-device", "virtio-serial-pci,id=vs0,max_ports=4",
		"-chardev", "socket,id=ctl,path="+arg("control")+",server=on,wait=off",
		"-device", "virtserialport,bus=vs0.0,nr=1,chardev=ctl,name="+guestapi.PortName+",id=port",
		"-drive", "if=none,id=image,format=raw,readonly=on,file="+arg("image"), "-device", "virtio-blk-pci,drive=image,id=vda",
		"-drive", "if=none,id=scratch,format=raw,discard=unmap,file="+arg("scratch"), "-device", "virtio-blk-pci,drive=scratch,id=vdb",
		"-netdev", "user,id=n0,restrict=on", "-device", "virtio-net-pci,netdev=n0,id=net0,romfile=",
		"-qmp", "unix:"+arg("qmp")+",server=on,wait=off",
	)
	vm.qemu.Args = append(vm.qemu.Args, o.Args...)
	vm.qemu.Args = append(vm.qemu.Args, more...)
	if o.Template {
		share := "on"
		if len(more) > 0 {
			share = "off" // a clone
		}
		vm.qemu.Args = append(vm.qemu.Args, "-machine", "memory-backend=ram", "-object",
			fmt.Sprintf("memory-backend-file,id=ram,size=%dM,mem-path=%s,share=%s", max(o.MemoryMiB, 256), arg("ram"), share))
	}
	log, err := os.Create(arg("qemu.log"))
	if err != nil {
		vm.t.Fatal(err)
	}
	defer log.Close()
	vm.qemu.Stderr = log
	if err := vm.qemu.Start(); err != nil {
		vm.t.Fatal(err)
	}
	go func() {
		_ = vm.qemu.Wait() // its log is shown when the agent is not reached
		close(vm.exited)
	}()
	vm.t.Cleanup(func() {
		if vm.Link != nil {
			vm.Link.Close()
		}
		_ = vm.qemu.Process.Kill()
		<-vm.exited
	})
}

// Dial makes a new link to the agent.
func (vm *VM) Dial(ctx context.Context) {
	vm.t.Helper()
	if vm.Link != nil {
		vm.Link.Close()
	}
	for {
		conn, err := net.Dial("unix", vm.Socket())
		if err == nil {
			link, err := guestapi.Dial(ctx, conn)
			if err != nil {
				log, _ := os.ReadFile(filepath.Join(vm.Dir, "qemu.log"))
				vm.t.Fatalf("%v\nqemu: %s\nconsole:\n%s", err, log, vm.Console())
			}
			vm.Link = link
			return
		}
		select {
		case <-time.After(5 * time.Millisecond): // QEMU makes the socket
		case <-vm.exited:
			log, _ := os.ReadFile(filepath.Join(vm.Dir, "qemu.log"))
			vm.t.Fatalf("qemu ended: %s", log)
		case <-ctx.Done():
			vm.t.Fatal(ctx.Err())
		}
	}
}

// Activation returns a valid activation of this machine.
func (vm *VM) Activation() guestapi.Activation {
	entropy := make([]byte, 64)
	if _, err := rand.Read(entropy); err != nil {
		vm.t.Fatal(err)
	}
	return guestapi.Activation{
		Time: time.Now(), Entropy: entropy, SandboxID: "sbx_test", Hostname: "skerry-test",
		MachineID: "0123456789abcdef0123456789abcdef", BootID: "01234567-89ab-cdef-0123-456789abcdef",
		MAC: "5a:94:ef:00:00:07", User: "root", MemoryMiB: 256, ScratchSectors: vm.scratch,
	}
}

// Activate activates the machine.
func (vm *VM) Activate(a guestapi.Activation) guestapi.Activated {
	vm.t.Helper()
	var out guestapi.Activated
	if err := vm.Control(vm.t.Context(), guestapi.PathActivate, a, &out); err != nil {
		vm.t.Fatalf("%v\nconsole:\n%s", err, vm.Console())
	}
	return out
}

// Kill ends the machine as a crash of its host would, but for what QEMU has
// handed to the kernel.
func (vm *VM) Kill() {
	_ = vm.qemu.Process.Kill()
	<-vm.exited
}

// Scratch is the path of the writable disk.
func (vm *VM) Scratch() string { return filepath.Join(vm.Dir, "scratch") }

// CheckScratch ends the machine and checks the file system it wrote: that is
// clean, and needs no journal to be.
func (vm *VM) CheckScratch() {
	vm.t.Helper()
	vm.Kill()
	vm.CheckDisk()
}

// CheckDisk checks the writable disk as it is now.
func (vm *VM) CheckDisk() {
	vm.t.Helper()
	vm.tool("e2fsck", "-fn", vm.Scratch())
	if out := vm.tool("dumpe2fs", "-h", vm.Scratch()); strings.Contains(out, "needs_recovery") || !strings.Contains(out, "clean\n") {
		vm.t.Errorf("the writable disk needs its journal:\n%s", out)
	}
}

// Run runs a program in the machine by the test agent.
func (vm *VM) Run(req run.Request) (run.Result, error) {
	var res run.Result
	if req.ID == "" {
		req.ID = "prc_" + strings.ToLower(rand.Text())
	}
	body, err := json.Marshal(req)
	if err != nil {
		return res, err
	}
	client := vm.HTTPClient(guestapi.StreamToolbox)
	defer client.CloseIdleConnections()
	resp, err := client.Post("http://agent/run", "application/json", bytes.NewReader(body))
	if err != nil {
		return res, err
	}
	defer resp.Body.Close()
	return res, json.NewDecoder(resp.Body).Decode(&res)
}

// Output runs /prog of the image with args, which must end well, and returns
// what it printed.
func (vm *VM) Output(args ...string) string {
	vm.t.Helper()
	res, err := vm.Run(run.Request{Argv: append([]string{"/prog"}, args...)})
	if err != nil || res.Error != "" || res.ExitCode != 0 {
		vm.t.Fatalf("prog %v: %+v, %v\nconsole:\n%s", args, res, err, vm.Console())
	}
	return res.Output
}
