package usernet

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// hostDeliversLocally asks the kernel whether a packet to addr would go to this
// host itself or to a broadcast address of its networks. The routing table is
// the truth here: it also knows local routes without an interface address, and
// no cached list can be out of date. If the kernel cannot be asked the answer
// is true, which closes the address. See rtnetlink(7), RTM_GETROUTE.
func hostDeliversLocally(addr netip.Addr) bool {
	kind, err := routeType(addr)
	if err != nil {
		return true
	}
	return kind != unix.RTN_UNICAST && kind != unix.RTN_UNSPEC
}

// routeType returns the rtm_type of the route to addr, RTN_UNSPEC if there is
// no route.
func routeType(addr netip.Addr) (uint8, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, routeRequest(addr), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, err
	}
	// The kernel has answered before sendto returned.
	var buf [4096]byte
	n, _, err := unix.Recvfrom(fd, buf[:], 0)
	if err != nil {
		return 0, err
	}
	return parseRouteReply(buf[:n])
}

func routeRequest(addr netip.Addr) []byte {
	const length = unix.NLMSG_HDRLEN + unix.SizeofRtMsg + unix.SizeofRtAttr + 4
	b := make([]byte, 0, length)
	b = binary.NativeEndian.AppendUint32(b, length)
	b = binary.NativeEndian.AppendUint16(b, unix.RTM_GETROUTE)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST)
	b = append(b, 0, 0, 0, 1, 0, 0, 0, 0) // sequence, port id
	b = append(b, unix.AF_INET, 32)       // family, destination bits
	b = append(b, make([]byte, unix.SizeofRtMsg-2)...)
	b = binary.NativeEndian.AppendUint16(b, unix.SizeofRtAttr+4)
	b = binary.NativeEndian.AppendUint16(b, unix.RTA_DST)
	a := addr.As4()
	return append(b, a[:]...)
}

func parseRouteReply(b []byte) (uint8, error) {
	if len(b) < unix.NLMSG_HDRLEN+unix.SizeofRtMsg {
		return 0, unix.EBADMSG
	}
	body := b[unix.NLMSG_HDRLEN:]
	switch binary.NativeEndian.Uint16(b[4:]) {
	case unix.RTM_NEWROUTE:
		return body[7], nil // struct rtmsg: rtm_type
	case unix.NLMSG_ERROR:
		switch errno := unix.Errno(-int32(binary.NativeEndian.Uint32(body))); errno {
		case unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL:
			return unix.RTN_UNSPEC, nil // no, unreachable, prohibit or blackhole route
		default:
			return 0, errno
		}
	}
	return 0, unix.EBADMSG
}
