package udpmsg

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Send sends p to an address with control messages oob, without blocking and
// without allocation. family is that of the socket: an IPv4 destination on an
// IPv6 socket is mapped. It may be called by many goroutines at once.
func Send(fd int, family uint8, p, oob []byte, to Addr) syscall.Errno {
	var (
		sa  unix.RawSockaddrInet6
		iov unix.Iovec
		h   unix.Msghdr
	)
	h.Name = (*byte)(unsafe.Pointer(&sa))
	h.Namelen = putSockaddr(&sa, family, to)
	if h.Namelen == 0 {
		return unix.EAFNOSUPPORT
	}
	if len(p) > 0 {
		iov.Base = &p[0]
		iov.SetLen(len(p))
	}
	h.Iov = &iov
	h.SetIovlen(1)
	if len(oob) > 0 {
		h.Control = &oob[0]
		h.SetControllen(len(oob))
	}
	for {
		// Raw for the same reason as in Batch.Receive: it never sleeps.
		_, _, errno := syscall.RawSyscall(unix.SYS_SENDMSG, uintptr(fd),
			uintptr(unsafe.Pointer(&h)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if errno != unix.EINTR {
			return errno
		}
	}
}

// WaitWritable waits until the socket takes data again, at most for
// milliseconds.
func WaitWritable(fd, milliseconds int) {
	p := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	_, _ = unix.Poll(p[:], milliseconds) // the next send tells what is wrong
}

// putSockaddr writes a for a socket of the family and returns the length, or
// zero when such a socket cannot reach a.
func putSockaddr(sa *unix.RawSockaddrInet6, family uint8, a Addr) uint32 {
	if family == IPv4 {
		if a.Family != IPv4 {
			return 0
		}
		s4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(sa))
		s4.Family = unix.AF_INET
		s4.Port = port(a.Port)
		copy(s4.Addr[:], a.Addr[:4])
		return unix.SizeofSockaddrInet4
	}
	sa.Family = unix.AF_INET6
	sa.Port = port(a.Port)
	if a.Family == IPv4 {
		copy(sa.Addr[:12], mapped4[:])
		copy(sa.Addr[12:], a.Addr[:4])
		return unix.SizeofSockaddrInet6
	}
	sa.Addr = a.Addr
	sa.Scope_id = a.Zone
	return unix.SizeofSockaddrInet6
}
