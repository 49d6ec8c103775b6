package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// networkTimeout is how long an attempt may take.
const networkTimeout = 10 * time.Second

// dial connects to ADDRESS by TCP and prints what it sends, or says why not.
func dial(args []string) error {
	start := time.Now()
	conn, err := net.DialTimeout("tcp", args[0], networkTimeout)
	if err != nil {
		kind := "error"
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			kind = "timeout"
		case errors.Is(err, unix.ECONNREFUSED):
			kind = "refused"
		case errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EACCES):
			kind = "prohibited"
		}
		fmt.Println("denied", kind, time.Since(start).Milliseconds(), "ms")
		return nil
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(networkTimeout))
	b, err := io.ReadAll(conn)
	if err != nil {
		return err
	}
	fmt.Printf("got %s\n", b)
	return nil
}

// resolve asks the system's resolver for a name.
func resolve(args []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), networkTimeout)
	defer cancel()
	resolver := net.Resolver{PreferGo: true}
	addrs, err := resolver.LookupHost(ctx, args[0])
	if err != nil {
		return err
	}
	fmt.Println(strings.Join(addrs, " "))
	return nil
}

// exchangeTimeout is how long an answer may take, a refusal included.
const exchangeTimeout = 3 * time.Second

// ping sends an ICMP echo request and waits for the answer.
func ping(args []string) error {
	// Type 8, code 0; the kernel sets identifier and checksum (icmp(7)).
	request := append([]byte{8, 0, 0, 0, 0, 0, 0, 1}, "payload"...)
	reply, err := exchange(unix.IPPROTO_ICMP, net.ParseIP(args[0]), 0, request)
	switch {
	case err != nil:
		fmt.Println("denied", err)
	case len(reply) < 8 || reply[0] != 0:
		fmt.Printf("denied: ICMP %x\n", reply)
	default:
		fmt.Printf("echo %s\n", reply[8:])
	}
	return nil
}

// datagram sends one to ADDRESS by UDP and prints the answer, or says why there
// is none.
func datagram(args []string) error {
	addr, err := net.ResolveUDPAddr("udp4", args[0])
	if err != nil {
		return err
	}
	reply, err := exchange(unix.IPPROTO_UDP, addr.IP, addr.Port, []byte("payload"))
	if err != nil {
		fmt.Println("denied", err)
		return nil
	}
	fmt.Printf("got %s\n", reply)
	return nil
}

// exchange sends a datagram and waits for the answer. The socket is connected:
// only then does the kernel pass ICMP errors on without more ado (ip(7)).
func exchange(protocol int, ip net.IP, port int, request []byte) ([]byte, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, protocol)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	tv := unix.NsecToTimeval(int64(exchangeTimeout))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		return nil, err
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: [4]byte(ip.To4()), Port: port}); err != nil {
		return nil, err
	}
	if _, err := unix.Write(fd, request); err != nil {
		return nil, err
	}
	reply := make([]byte, 1500)
	n, err := unix.Read(fd, reply)
	if err != nil {
		return nil, err
	}
	return reply[:n], nil
}
