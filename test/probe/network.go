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

// pingTimeout is how long an answer may take; what is closed gives none.
const pingTimeout = 3 * time.Second

// ping sends an ICMP echo request and waits for the answer.
func ping(args []string) error {
	ip := net.ParseIP(args[0]).To4()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	tv := unix.NsecToTimeval(int64(pingTimeout))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		return err
	}
	// Type 8, code 0; the kernel sets identifier and checksum (icmp(7)).
	request := append([]byte{8, 0, 0, 0, 0, 0, 0, 1}, "payload"...)
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrInet4{Addr: [4]byte(ip)}); err != nil {
		fmt.Println("denied", err)
		return nil
	}
	reply := make([]byte, 1500)
	n, _, err := unix.Recvfrom(fd, reply, 0)
	switch {
	case err != nil:
		fmt.Println("denied", err)
	case n < 8 || reply[0] != 0:
		fmt.Println("denied: ICMP type", reply[0])
	default:
		fmt.Printf("echo %s\n", reply[8:n])
	}
	return nil
}
