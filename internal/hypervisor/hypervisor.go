// Package hypervisor picks the driver that a shim's spec asks for. Server and
// shim must agree on it: a template fits only the driver it was captured with.
package hypervisor

import (
	"skerry.dev/skerry/internal/guestapi"
	"skerry.dev/skerry/internal/machine/qemu"
	"skerry.dev/skerry/internal/shim"
)

// New returns the QEMU driver that a spec asks for.
func New(spec shim.DriverSpec) *qemu.Driver {
	return qemu.New(qemu.Options{Binary: spec.Binary, KVM: spec.Accel == "kvm", PortName: guestapi.PortName,
		UID: uint32(spec.UID), GID: uint32(spec.GID)})
}
