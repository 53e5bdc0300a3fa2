package worker

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
	"github.com/holdfast-quic/holdfast/internal/udpmsg"
)

// socket is this process's descriptor of a listening socket that the
// supervisor owns. Closing it closes nothing for anybody else.
type socket struct {
	fd       int
	index    int
	family   uint8
	local    udpmsg.Addr
	retiring bool
	info     lifeline.Socket // as the supervisor described it

	// dropped is the kernel's drop count when last seen. It belongs to the
	// goroutine that reads the socket.
	dropped uint32
}

// newSocket duplicates f, which stays the caller's.
func newSocket(f *os.File, s lifeline.Socket) (_ *socket, err error) {
	fd, err := dupFD(f)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", s.Address, err)
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
			err = fmt.Errorf("socket %s: %w", s.Address, err)
		}
	}()
	out := &socket{fd: fd, index: s.Index, retiring: s.Retiring, info: s}
	if out.family, err = udpmsg.Family(fd); err != nil {
		return nil, err
	}
	if out.local, err = udpmsg.LocalAddr(fd); err != nil {
		return nil, err
	}
	if s.Network == "udp" {
		if err = udpmsg.Prepare(fd); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// newStandIn makes a UDP socket that receives nothing. Its descriptor is a
// blocking one, which Go's poller leaves alone.
func newStandIn(family uint8) (*os.File, error) {
	domain := unix.AF_INET6
	if family == udpmsg.IPv4 {
		domain = unix.AF_INET
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	return os.NewFile(uintptr(fd), "socket for options"), nil
}

func (s *socket) close() {
	if s.fd >= 0 {
		unix.Close(s.fd)
		s.fd = -1
	}
}

// begin is called when the reading starts: what the kernel dropped before has
// been counted by whoever read the socket then.
func (s *socket) begin() {
	if m, err := udpmsg.MemoryOf(s.fd); err == nil {
		s.dropped = m.Dropped
	}
}

// newDrops returns how many datagrams were dropped since the last look, by the
// count that came with a datagram. Counts may arrive out of order.
func (s *socket) newDrops(count uint32) uint64 {
	d := count - s.dropped
	if d == 0 || d >= 1<<31 {
		return 0
	}
	s.dropped = count
	return uint64(d)
}
