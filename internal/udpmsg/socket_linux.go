package udpmsg

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Prepare turns on what Receive reports: trains, ECN marks, packet info and
// the drop counter, and forbids fragmentation. It is idempotent, so every
// process that inherits a socket may call it.
func Prepare(fd int) error {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return os.NewSyscallError("getsockopt SO_DOMAIN", err)
	}
	type option struct {
		level, name, value int
		what               string
	}
	options := []option{
		// On a dual-stack socket these are for its IPv4 datagrams.
		{unix.IPPROTO_IP, unix.IP_RECVTOS, 1, "IP_RECVTOS"},
		{unix.IPPROTO_IP, unix.IP_PKTINFO, 1, "IP_PKTINFO"},
		{unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE, "IP_MTU_DISCOVER"},
	}
	if domain == unix.AF_INET6 {
		options = append(options,
			option{unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1, "IPV6_RECVTCLASS"},
			option{unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1, "IPV6_RECVPKTINFO"},
			option{unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE, "IPV6_MTU_DISCOVER"})
	}
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return fmt.Errorf("set %s: %w", o.what, err)
		}
	}
	// Both only make things better; an old kernel serves without them.
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 1)
	return nil
}

// Family returns the family of a socket.
func Family(fd int) (uint8, error) {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return 0, os.NewSyscallError("getsockopt SO_DOMAIN", err)
	}
	switch domain {
	case unix.AF_INET:
		return IPv4, nil
	case unix.AF_INET6:
		return IPv6, nil
	}
	return 0, fmt.Errorf("socket of address family %d", domain)
}

// LocalAddr returns the address that a socket is bound to.
func LocalAddr(fd int) (Addr, error) {
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return Addr{}, os.NewSyscallError("getsockname", err)
	}
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		a := Addr{Family: IPv4, Port: uint16(sa.Port)}
		copy(a.Addr[:4], sa.Addr[:])
		return a, nil
	case *unix.SockaddrInet6:
		return Addr{Family: IPv6, Port: uint16(sa.Port), Addr: sa.Addr, Zone: sa.ZoneId}, nil
	}
	return Addr{}, errors.New("socket has no internet address")
}

// Memory is what the kernel says about the receiving half of a socket.
type Memory struct {
	Limit   int    // most bytes that may wait, with what the kernel adds to each packet
	Dropped uint32 // packets dropped so far; it starts again at 0 after 2^32-1
}

// MemoryOf returns the use of a socket's receive buffer. Nearly all drops mean
// that it was full; a bad checksum is one too. A train that the kernel had
// merged before it found no room counts once. Message.Dropped continues the
// number of drops.
func MemoryOf(fd int) (Memory, error) {
	var info [unix.SK_MEMINFO_VARS]uint32
	size := uint32(unsafe.Sizeof(info))
	_, _, errno := syscall.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&info[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return Memory{}, os.NewSyscallError("getsockopt SO_MEMINFO", errno)
	}
	return Memory{
		Limit:   int(info[unix.SK_MEMINFO_RCVBUF]),
		Dropped: info[unix.SK_MEMINFO_DROPS],
	}, nil
}
