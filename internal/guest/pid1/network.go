package pid1

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

const ethName = "eth0"

// configureNetwork brings up lo and, if there is one, eth0 with the address all
// sandboxes have.
func (s *System) configureNetwork(ctx context.Context) error {
	// The network is IPv4 only; a link-local address would only make noise.
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+ethName+"/disable_ipv6", []byte("1"), 0)
	// Everybody may ping.
	if err := os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("0 2147483647"), 0); err != nil {
		return err
	}
	nl, err := openNetlink()
	if err != nil {
		return err
	}
	defer nl.close()
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		return err
	}
	if err := nl.setLink(lo.Index, linkUp); err != nil {
		return fmt.Errorf("lo up: %w", err)
	}
	if s.boot.Address == "" {
		return nil
	}
	return s.configureEth(ctx, nl)
}

func (s *System) configureEth(ctx context.Context, nl *netlink) error {
	var eth *net.Interface
	err := waitFor(ctx, ethName, func() (found bool, err error) {
		eth, err = net.InterfaceByName(ethName)
		return err == nil, nil
	})
	if err != nil {
		return err
	}
	addr, err := netip.ParsePrefix(s.boot.Address)
	if err != nil || !addr.Addr().Is4() {
		return fmt.Errorf("address %q is no IPv4 prefix", s.boot.Address)
	}
	gateway, err := netip.ParseAddr(s.boot.Gateway)
	if err != nil || !gateway.Is4() {
		return fmt.Errorf("gateway %q is no IPv4 address", s.boot.Gateway)
	}
	link := linkUp
	if s.boot.MTU > 0 {
		link.mtu = uint32(s.boot.MTU)
	}
	if err := nl.setLink(eth.Index, link); err != nil {
		return fmt.Errorf("%s up: %w", ethName, err)
	}
	if err := nl.addAddress(eth.Index, addr); err != nil {
		return fmt.Errorf("address of %s: %w", ethName, err)
	}
	if err := nl.addDefaultRoute(eth.Index, gateway); err != nil {
		return fmt.Errorf("default route: %w", err)
	}
	return nil
}

// setMAC gives eth0 the sandbox's hardware address (netdevice(7)). It runs in
// every create, and an ioctl is a fraction of the code of rtnetlink.
func setMAC(text string) error {
	mac, err := net.ParseMAC(text)
	if err != nil {
		return err
	}
	if len(mac) != 6 {
		return fmt.Errorf("%q is no Ethernet address", text)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var req struct { // struct ifreq
		name   [unix.IFNAMSIZ]byte
		family uint16
		addr   [14]byte
		_      [8]byte
	}
	copy(req.name[:], ethName)
	req.family = unix.ARPHRD_ETHER
	copy(req.addr[:], mac)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCSIFHWADDR, uintptr(unsafe.Pointer(&req)))
	if errno != 0 {
		return fmt.Errorf("SIOCSIFHWADDR: %w", errno)
	}
	return nil
}

// netlink is a NETLINK_ROUTE socket (rtnetlink(7)) for a handful of requests.
type netlink struct {
	fd  int
	seq uint32
}

func openNetlink() (*netlink, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink socket: %w", err)
	}
	return &netlink{fd: fd}, nil
}

func (nl *netlink) close() { _ = unix.Close(nl.fd) } // nothing was buffered

// linkChange is what setLink changes; zero fields stay.
type linkChange struct {
	up  bool
	mtu uint32
}

var linkUp = linkChange{up: true}

func (nl *netlink) setLink(index int, c linkChange) error {
	msg := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(msg[4:], uint32(index))
	if c.up {
		binary.NativeEndian.PutUint32(msg[8:], unix.IFF_UP)
		binary.NativeEndian.PutUint32(msg[12:], unix.IFF_UP)
	}
	if c.mtu > 0 {
		msg = appendAttr(msg, unix.IFLA_MTU, binary.NativeEndian.AppendUint32(nil, c.mtu))
	}
	return nl.request(unix.RTM_NEWLINK, 0, msg)
}

func (nl *netlink) addAddress(index int, addr netip.Prefix) error {
	msg := make([]byte, unix.SizeofIfAddrmsg)
	msg[0] = unix.AF_INET
	msg[1] = byte(addr.Bits())
	binary.NativeEndian.PutUint32(msg[4:], uint32(index))
	msg = appendAttr(msg, unix.IFA_LOCAL, addr.Addr().AsSlice())
	msg = appendAttr(msg, unix.IFA_ADDRESS, addr.Addr().AsSlice())
	return nl.request(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, msg)
}

func (nl *netlink) addDefaultRoute(index int, gateway netip.Addr) error {
	msg := make([]byte, unix.SizeofRtMsg)
	msg[0] = unix.AF_INET
	msg[4] = unix.RT_TABLE_MAIN
	msg[5] = unix.RTPROT_BOOT
	msg[6] = unix.RT_SCOPE_UNIVERSE
	msg[7] = unix.RTN_UNICAST
	msg = appendAttr(msg, unix.RTA_GATEWAY, gateway.AsSlice())
	msg = appendAttr(msg, unix.RTA_OIF, binary.NativeEndian.AppendUint32(nil, uint32(index)))
	return nl.request(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, msg)
}

func appendAttr(msg []byte, kind uint16, value []byte) []byte {
	msg = binary.NativeEndian.AppendUint16(msg, uint16(unix.SizeofRtAttr+len(value)))
	msg = binary.NativeEndian.AppendUint16(msg, kind)
	msg = append(msg, value...)
	for len(msg)%unix.NLMSG_ALIGNTO != 0 {
		msg = append(msg, 0)
	}
	return msg
}

var errShortReply = errors.New("short netlink reply")

// request sends one message and returns the kernel's acknowledgement.
func (nl *netlink) request(kind, flags uint16, body []byte) error {
	nl.seq++
	msg := make([]byte, 0, unix.SizeofNlMsghdr+len(body))
	msg = binary.NativeEndian.AppendUint32(msg, uint32(unix.SizeofNlMsghdr+len(body)))
	msg = binary.NativeEndian.AppendUint16(msg, kind)
	msg = binary.NativeEndian.AppendUint16(msg, flags|unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	msg = binary.NativeEndian.AppendUint32(msg, nl.seq)
	msg = binary.NativeEndian.AppendUint32(msg, 0)
	msg = append(msg, body...)
	if err := unix.Sendto(nl.fd, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	buf := make([]byte, 8<<10)
	n, _, err := unix.Recvfrom(nl.fd, buf, 0)
	if err != nil {
		return err
	}
	if n < unix.SizeofNlMsghdr+4 {
		return errShortReply
	}
	if code := int32(binary.NativeEndian.Uint32(buf[unix.SizeofNlMsghdr:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}
