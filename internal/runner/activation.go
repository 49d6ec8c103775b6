package runner

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/guestapi"
)

// activation is the identity and the settings of one sandbox. Everything in it
// that looks random differs between the clones of a template. What belongs to the
// machine and not to a boot is the same after each start of the sandbox
// (machine-id(5)).
func activation(id skerry.SandboxID, job bus.CreateJob) guestapi.Activation {
	mac := lasting(id, "mac", 6)
	mac[0] = mac[0]&^1 | 2 // unicast, locally administered (IEEE 802)
	return guestapi.Activation{
		SandboxID: string(id), Hostname: hostname(job.Name),
		MachineID: hex.EncodeToString(lasting(id, "machine-id", 16)), BootID: uuid(random(16)),
		MAC:  fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5]),
		User: job.User, WorkingDir: job.Config.WorkingDir, ImageEnv: job.Config.Env, Env: job.Env,
		MemoryMiB: job.Resources.MemoryMiB, FixedMemory: memoryLimitMiB(job.Resources) == 0,
		ScratchSectors: job.Resources.DiskLimitMiB() << 20 / 512,
	}
}

// lasting returns n bytes, at most 32, that a sandbox has for life and no other
// sandbox has.
func lasting(id skerry.SandboxID, what string, n int) []byte {
	sum := sha256.Sum256([]byte(what + " of " + string(id)))
	return sum[:n]
}

func random(n int) []byte {
	b := make([]byte, n)
	rand.Read(b)
	return b
}

// uuid formats 16 random bytes as a version 4 UUID (RFC 9562).
func uuid(b []byte) string {
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:16])
}

// hostname makes a host name of a sandbox's name: letters, digits and hyphens
// inside, at most 63 (RFC 1123, section 2.1).
func hostname(name string) string {
	name = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, name)
	name = strings.Trim(name, "-")
	if len(name) > 63 {
		name = strings.TrimRight(name[:63], "-")
	}
	if name == "" {
		return "sandbox"
	}
	return name
}
