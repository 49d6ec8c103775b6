package kernel

// common are the kernel parameters of every machine.
//
// panic=-1 with QEMU's -no-reboot ends the machine when PID 1 does. Plugged
// memory must come online by itself, and room for it above 4 GiB must not cost
// 64 MiB of bounce buffers. The big security modules have no policy in a
// sandbox, but their hooks are in every system call.
const common = "console=ttyS0 quiet panic=-1 oops=panic memhp_default_state=online memory_hotplug.online_policy=auto-movable swiotlb=noforce" +
	" lsm=landlock,yama"

// emulated are those for software emulation. Mitigations protect a processor
// that is not there, and a second zeroing of memory protects from nobody. Pressure
// accounting and the Go runtime's preemption by signals (the last is for PID 1's
// environment) are code that a clone would have to translate first. Programs at
// random addresses are translated anew each time they start, which is half of
// what a small one costs; so addresses are random with KVM only.
const emulated = " mitigations=off init_on_alloc=0 no_timer_check tsc=reliable psi=0 norandmaps GODEBUG=asyncpreemptoff=1"

// CommandLine returns the kernel parameters for an accelerator, "kvm" or "tcg".
// The caller appends guestapi.Boot's.
func CommandLine(accel string) string {
	if accel == "kvm" {
		return common
	}
	return common + emulated
}
