package qemu_test

import (
	"testing"

	"skerry.dev/skerry/internal/machine/machinetest"
	"skerry.dev/skerry/internal/machine/qemu"
)

func newDriver() *qemu.Driver {
	return qemu.New(qemu.Options{PortName: "org.skerry.agent", UID: 65534, GID: 65534})
}

func TestConformance(t *testing.T) {
	machinetest.Run(t, machinetest.Implementation{Driver: newDriver(), Load: qemu.LoadTemplate})
}
