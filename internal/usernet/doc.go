// Package usernet is the network of one sandbox, in user space: Ethernet
// frames of the guest come in over a stream, ordinary sockets of the host go
// out. It needs no privilege, no TAP device and no firewall rule.
//
// # Shape
//
// A frame passes three stages. The link (link.go) cuts the stream into frames.
// The ingress (ingress.go) answers ARP, drops what a well-behaved guest would
// not send, and takes ICMP aside. The rest goes to a TCP/IP stack (gVisor's),
// which reassembles datagrams and speaks TCP with the guest; each connection
// is then joined to one socket of the host (tcp.go), each pair of UDP ports or
// ICMP echo identifiers to one connected datagram socket (nat.go).
//
// # Addresses
//
// They are the same in every sandbox, so that a captured machine fits all:
// GuestAddr, GatewayAddr (answers echo requests, nothing else) and DNSAddr
// (port 53 only). There is no IPv6: router solicitations are ignored and AAAA
// questions have no answers, so that programs do not try it.
//
// # Policy
//
// Every flow and every DNS question is put to one Policy before a socket of
// the host is opened. DNS answers are never trusted: what counts is the
// address a flow goes to. A refusal is shown at once: TCP by a reset, UDP and
// ICMP by "administratively prohibited", DNS by REFUSED.
//
// # Hostile guests
//
// Everything a guest can make this package hold is bounded by Limits. The link
// ends with an error only when its framing is broken; all else that is wrong
// in a frame is dropped and counted. Writes to the guest block when it does
// not read, which stalls its own flows and nothing else.
package usernet
