package pid1

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MinEntropy is the least number of bytes a reseed takes.
const MinEntropy = 32

var errLittleEntropy = errors.New("too little entropy from the host")

// reseed makes the kernel's random numbers differ from those of every other
// machine restored from the same capture (random(4)). The agent's own ones
// follow: crypto/rand reads the kernel's. math/rand's generator does not, so
// nothing in the agent may take ids from it.
func reseed(entropy []byte) error {
	if len(entropy) < MinEntropy {
		return fmt.Errorf("%w: %d bytes, at least %d", errLittleEntropy, len(entropy), MinEntropy)
	}
	f, err := os.OpenFile("/dev/urandom", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	// struct rand_pool_info: entropy_count in bits, buf_size in bytes, buf.
	info := binary.NativeEndian.AppendUint32(nil, uint32(len(entropy))*8)
	info = binary.NativeEndian.AppendUint32(info, uint32(len(entropy)))
	info = append(info, entropy...)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.RNDADDENTROPY, uintptr(unsafe.Pointer(&info[0])))
	if errno != 0 {
		return fmt.Errorf("RNDADDENTROPY: %w", errno)
	}
	// Without this the generator goes on with the captured key for minutes.
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.RNDRESEEDCRNG, 0); errno != 0 {
		return fmt.Errorf("RNDRESEEDCRNG: %w", errno)
	}
	return nil
}

func setClock(t time.Time) error {
	ts, err := unix.TimeToTimespec(t)
	if err != nil {
		return err
	}
	return unix.ClockSettime(unix.CLOCK_REALTIME, &ts)
}
