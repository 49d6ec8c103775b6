package qemu

import (
	"fmt"
	"strconv"
	"strings"

	"skerry.dev/skerry/internal/machine"
)

// The names of what the command line makes and QMP later changes.
const (
	imageNode       = "image"       // block node behind the image disk
	imageDevice     = "image-dev"   // the image disk, vda in the guest
	scratchNode     = "scratch"     // block node behind the writable disk at start
	scratchDevice   = "scratch-dev" // the writable disk, vdb in the guest
	pluggableDevice = "vmem"        // the virtio-mem device
	controlDevice   = "control"     // the socket of the agent's port
	pluggableMemory = "pluggable"   // the memory behind it
)

// placeholderBytes is the size of the scratch disk a template is captured with.
// It is what the guest believes until the real disk takes its place.
const placeholderBytes = 256 << 30

// memoryBlockMiB is the unit in which memory is plugged.
const memoryBlockMiB = 2

// noFD marks a descriptor that is not there.
const noFD = -1

// layout is all that QEMU's command line depends on. Numbers called FD are
// descriptors in QEMU, where everything it works with is already open: it runs
// as a user that can open no file of ours.
type layout struct {
	accel      string // "kvm" or "tcg"
	cpu        string
	tbSizeMiB  int // translation cache of TCG
	portName   string
	mac        string
	shape      machine.Shape
	monitorFD  int
	consoleFD  int
	controlFD  int
	listen     bool // controlFD listens
	netFD      int  // or noFD: the interface has no peer
	imageFDs   []int
	imageVMDK  int // descriptor file that joins imageFDs; noFD: no image disk content
	scratchFD  int // or noFD: a placeholder
	ramFD      int
	restore    bool // map ramFD privately and wait for a state; else boot
	zygote     bool // it forks, which its sandbox otherwise forbids
	doorFD     int  // of a zygote
	kernelFD   int
	initrdFD   int
	kernelArgs string
}

// argv is QEMU's command line, without the program's name. It is a pure
// function: templates are keyed by what it returns, see version.
func (l layout) argv() []string {
	spawn := "deny"
	if l.zygote {
		spawn = "allow"
	}
	a := []string{
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=" + spawn + ",resourcecontrol=deny",
	}
	a = append(a, l.machineArgs()...)
	a = append(a, l.channelArgs()...)
	a = append(a, l.diskArgs()...)
	a = append(a, l.networkArgs()...)
	a = append(a, l.memoryDeviceArgs()...)
	return append(a, l.startArgs()...)
}

// machineArgs is a q35, which virtio-mem needs, without all that a machine
// with only virtio devices does not.
func (l layout) machineArgs() []string {
	accel := l.accel
	if accel == "tcg" {
		accel = fmt.Sprintf("tcg,thread=multi,tb-size=%d", l.tbSizeMiB)
	}
	share := "on"
	if l.restore {
		share = "off"
	}
	a := []string{
		"-machine", "q35,sata=off,smbus=off,i8042=off,hpet=off,vmport=off,usb=off,smm=off,graphics=off," +
			"mem-merge=off,dump-guest-core=off,memory-backend=ram",
		"-accel", accel,
		"-cpu", l.cpu,
		"-smp", strconv.Itoa(l.shape.VCPUs),
		"-object", fmt.Sprintf("memory-backend-file,id=ram,size=%dM,mem-path=%s,share=%s", l.shape.BaseMiB, selfFD(l.ramFD), share),
	}
	mem := fmt.Sprintf("%dM", l.shape.BaseMiB)
	if l.pluggableMiB() > 0 {
		mem += fmt.Sprintf(",slots=1,maxmem=%dM", l.shape.MaxMemMiB)
	}
	return append(a, "-m", mem)
}

// channelArgs are the monitor, the console and the agent's port.
func (l layout) channelArgs() []string {
	control := fmt.Sprintf("socket,id=control,fd=%d", l.controlFD)
	if l.listen {
		control += ",server=on,wait=off"
	}
	return []string{
		"-chardev", fmt.Sprintf("socket,id=monitor,fd=%d", l.monitorFD),
		"-mon", "chardev=monitor,mode=control",
		"-chardev", fmt.Sprintf("socket,id=console,fd=%d", l.consoleFD),
		"-serial", "chardev:console",
		"-chardev", control,
		"-device", "virtio-serial-pci,id=serial,max_ports=2,romfile=",
		"-device", "virtserialport,bus=serial.0,nr=1,chardev=control,name=" + l.portName,
	}
}

// diskArgs are vda, the image, and vdb, the writable disk. The image's layer
// files are joined by a VMDK descriptor that names them by descriptor set.
func (l layout) diskArgs() []string {
	var a []string
	image := "driver=null-co,node-name=" + imageNode + ",size=0,read-zeroes=on,read-only=on"
	if l.imageVMDK != noFD {
		for i, fd := range l.imageFDs {
			a = append(a, "-add-fd", fmt.Sprintf("fd=%d,set=%d", fd, extentSet(i)))
		}
		a = append(a, "-add-fd", fmt.Sprintf("fd=%d,set=%d", l.imageVMDK, descriptorSet))
		image = fmt.Sprintf("driver=vmdk,node-name=%s,read-only=on,file.driver=file,file.filename=%s,file.locking=off", imageNode, fdset(descriptorSet))
	}
	scratch := fmt.Sprintf("driver=null-co,node-name=%s,size=%d,read-zeroes=on", scratchNode, int64(placeholderBytes))
	if l.scratchFD != noFD {
		a = append(a, "-add-fd", fmt.Sprintf("fd=%d,set=%d", l.scratchFD, scratchSet))
		scratch = fmt.Sprintf("driver=raw,node-name=%s,discard=unmap,file.driver=file,file.filename=%s,file.locking=off,file.discard=unmap",
			scratchNode, fdset(scratchSet))
	}
	const disk = "virtio-blk-pci,num-queues=1,romfile="
	return append(a,
		"-blockdev", image,
		"-blockdev", scratch,
		"-device", disk+",id="+imageDevice+",drive="+imageNode,
		"-device", disk+",id="+scratchDevice+",drive="+scratchNode,
	)
}

// networkArgs are the network interface. After a restore the guest would tell
// its network where it is now, five times; there is no switch to learn it.
func (l layout) networkArgs() []string {
	device := "virtio-net-pci,guest_announce=off,mac=" + l.mac + ",romfile="
	if l.netFD == noFD {
		return []string{"-device", device}
	}
	return []string{
		"-netdev", fmt.Sprintf("stream,id=net,server=off,addr.type=fd,addr.str=%d", l.netFD),
		"-device", device + ",netdev=net",
	}
}

// memoryDeviceArgs are the memory beyond the base, anonymous so that a clone
// never touches the template's file with it, and the device by which the guest
// reports what it has freed.
func (l layout) memoryDeviceArgs() []string {
	a := []string{"-device", "virtio-balloon-pci,free-page-reporting=on,romfile="}
	if size := l.pluggableMiB(); size > 0 {
		a = append(a,
			"-object", fmt.Sprintf("memory-backend-ram,id=%s,size=%dM,reserve=off", pluggableMemory, size),
			"-device", fmt.Sprintf("virtio-mem-pci,id=%s,memdev=%s,requested-size=0,block-size=%dM,romfile=", pluggableDevice, pluggableMemory, memoryBlockMiB),
		)
	}
	return a
}

func (l layout) startArgs() []string {
	if l.restore {
		return []string{"-S", "-incoming", "defer"}
	}
	return []string{"-kernel", selfFD(l.kernelFD), "-initrd", selfFD(l.initrdFD), "-append", l.kernelArgs}
}

func (l layout) pluggableMiB() int64 { return l.shape.MaxMemMiB - l.shape.BaseMiB }

// Descriptor sets, QEMU's names for passed descriptors in file names.
const (
	descriptorSet = 1
	scratchSet    = 2
	firstExtent   = 16
)

func extentSet(i int) int  { return firstExtent + i }
func fdset(set int) string { return "/dev/fdset/" + strconv.Itoa(set) }
func selfFD(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// vmdk is a descriptor file that joins extents to one disk ("VMware Virtual
// Disk Format 1.1", section "The Layout of the Descriptor File"). No blank line
// may stand before the first extent: QEMU would count that extent twice.
func vmdk(extents []machine.Extent) string {
	var b strings.Builder
	b.WriteString("# Disk DescriptorFile\nversion=1\nCID=fffffffe\nparentCID=ffffffff\ncreateType=\"twoGbMaxExtentFlat\"\n")
	for i, e := range extents {
		fmt.Fprintf(&b, "RW %d FLAT \"%s\" 0\n", e.Sectors, fdset(extentSet(i)))
	}
	return b.String()
}
