package kernel

// CommandLine returns the kernel parameters for an accelerator, "kvm" or "tcg".
// The caller appends guestapi.Boot's.
func CommandLine(accel string) string {
	// panic=-1 with QEMU's -no-reboot ends the machine when PID 1 does.
	// Plugged memory must come online by itself, and a room for it above
	// 4 GiB must not cost 64 MiB of bounce buffers.
	const common = "console=ttyS0 quiet panic=-1 oops=panic memhp_default_state=online_movable swiotlb=noforce"
	if accel == "kvm" {
		return common
	}
	// The mitigations protect a processor that software emulation does not
	// have. Everything else here is only slow under emulation.
	return common + " mitigations=off apparmor=0 init_on_alloc=0 no_timer_check tsc=reliable"
}
