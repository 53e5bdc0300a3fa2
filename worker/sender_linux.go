package worker

import (
	"errors"
	"math"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/holdfast-quic/holdfast/internal/udpmsg"
)

// sender is the sending half of a conn. Its descriptors are duplicates of
// listening sockets that are in nobody's poller, so a worker that drains can
// answer its clients without being woken by those of others. Any number of
// goroutines may send.
type sender struct {
	refs atomic.Int64 // sends in flight; negative once closed

	// By destination. A descriptor keeps its number until the end: another
	// socket takes its place by dup3, so a send in flight never meets a
	// number that has come to mean something else.
	to4, to6 atomic.Pointer[outlet]
	owned    [2]int // descriptors for AF_INET and AF_INET6; -1: none
	shut     sync.Once

	noECN   pathSet
	lost    func() // counts what could not be sent
	warned  [numTroubles]atomic.Bool
	warning func(what string, err error)

	sendFn func(fd int, family uint8, p, oob []byte, to udpmsg.Addr) syscall.Errno
}

// outlet is a socket to send from. It is immutable.
type outlet struct {
	fd     int
	family uint8
	local  udpmsg.Addr
}

// trouble is something about sending that is worth one line in the log.
type trouble int

const (
	troubleGSO trouble = iota
	troubleECN
	troubleLost
	numTroubles
)

var troubles = [numTroubles]string{
	"sending in segments (GSO) is refused; off for this path",
	"ECN marks are refused; off for this path",
	"datagrams could not be sent",
}

var errNoSocket = errors.New("no socket to send from")

const (
	// A full send buffer is waited for, but only so long: the datagram is
	// worth less than the goroutine.
	sendTries  = 5
	sendWaitMS = 10
)

func newSender(sockets []*socket) (*sender, error) {
	s := &sender{owned: [2]int{-1, -1}, lost: func() {}, warning: func(string, error) {}, sendFn: udpmsg.Send}
	if err := s.use(sockets); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// use chooses the sockets to send from. One that retires is used only when
// there is no other. It is not called by two goroutines at once.
func (s *sender) use(sockets []*socket) error {
	var best [2]*socket
	for _, sock := range sockets {
		i := familyIndex(sock.family)
		if b := best[i]; b == nil || (b.retiring && !sock.retiring) ||
			(b.retiring == sock.retiring && sock.index < b.index) {
			best[i] = sock
		}
	}
	if best[0] == nil && best[1] == nil {
		return errNoSocket
	}
	var outlets [2]*outlet
	for i, sock := range best {
		if sock == nil {
			continue
		}
		fd, err := s.place(i, sock.fd)
		if err != nil {
			return err
		}
		outlets[i] = &outlet{fd: fd, family: sock.family, local: sock.local}
	}
	s.to6.Store(outlets[1])
	switch {
	case outlets[0] == nil, outlets[1] != nil && best[0].retiring && !best[1].retiring:
		s.to4.Store(outlets[1]) // dual stack
	default:
		s.to4.Store(outlets[0])
	}
	return nil
}

// place puts a duplicate of fd under the sender's descriptor number i.
func (s *sender) place(i, fd int) (int, error) {
	if s.owned[i] >= 0 {
		return s.owned[i], os.NewSyscallError("dup3", unix.Dup3(fd, s.owned[i], unix.O_CLOEXEC))
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("fcntl F_DUPFD_CLOEXEC", err)
	}
	s.owned[i] = dup
	return dup, nil
}

func familyIndex(family uint8) int {
	if family == udpmsg.IPv4 {
		return 0
	}
	return 1
}

// primary returns the bound address of the socket that is sent from first.
func (s *sender) primary() udpmsg.Addr {
	if o := s.to6.Load(); o != nil {
		return o.local
	}
	return s.to4.Load().local
}

// send sends one datagram, or a train with UDP_SEGMENT in oob. See
// conn.WriteMsgUDP for what its errors mean.
func (s *sender) send(b, oob []byte, addr *net.UDPAddr) error {
	if !s.acquire() {
		return net.ErrClosed
	}
	defer s.releaseRef()
	to, ok := udpmsg.AddrFrom(addr)
	o := s.outletFor(to.Family)
	if !ok || o == nil {
		s.lose(unix.EAFNOSUPPORT)
		return nil
	}
	if s.noECN.has(&to) {
		oob, _ = udpmsg.WithoutECN(nil, oob)
	}
	errno := s.sendFn(o.fd, o.family, b, oob, to)
	if errno == 0 {
		return nil
	}
	return s.recover(o, b, oob, to, errno)
}

// sendOnce sends a datagram that is not worth waiting for: what the socket does
// not take at once is lost, and counted.
func (s *sender) sendOnce(b, oob []byte, to udpmsg.Addr) {
	if !s.acquire() {
		return
	}
	defer s.releaseRef()
	errno := unix.EAFNOSUPPORT
	if o := s.outletFor(to.Family); o != nil {
		errno = s.sendFn(o.fd, o.family, b, oob, to)
	}
	if errno != 0 {
		s.lose(errno)
	}
}

// outletFor returns the socket to send to a family from, or nil.
func (s *sender) outletFor(family uint8) *outlet {
	if family == udpmsg.IPv6 {
		return s.to6.Load()
	}
	return s.to4.Load()
}

// recover deals with a send that failed: it tries what may help, returns an
// error that makes quic-go do its part, and swallows the rest, since an error
// from here ends a connection that may be well again in a moment.
func (s *sender) recover(o *outlet, b, oob []byte, to udpmsg.Addr, errno syscall.Errno) error {
	for try := 0; errno == unix.EAGAIN && try < sendTries; try++ {
		udpmsg.WaitWritable(o.fd, sendWaitMS)
		errno = s.sendFn(o.fd, o.family, b, oob, to)
	}
	if errno == unix.EPERM {
		// The first one on a socket is refused now and then
		// (golang.org/issue/63322); a firewall refuses them all.
		errno = s.sendFn(o.fd, o.family, b, oob, to)
	}
	if errno == unix.EINVAL || (errno == unix.EIO && udpmsg.SegmentSize(oob) == 0) {
		if plain, had := udpmsg.WithoutECN(nil, oob); had {
			if s.sendFn(o.fd, o.family, b, plain, to) == 0 {
				s.noECN.add(&to)
				s.warnOnce(troubleECN, errno)
				return nil
			}
		}
	}
	switch {
	case errno == 0:
		return nil
	case errno == unix.EMSGSIZE:
		// Path MTU discovery learns from it.
		return os.NewSyscallError("sendmsg", errno)
	case (errno == unix.EINVAL || errno == unix.EIO) && udpmsg.SegmentSize(oob) != 0:
		// quic-go takes EIO, and only EIO, as the word to send one by one.
		s.warnOnce(troubleGSO, errno)
		return os.NewSyscallError("sendmsg", unix.EIO)
	}
	s.lose(errno)
	return nil
}

// lose counts a datagram that the network will not see. To its connection it
// is as if the packet were lost on the way.
func (s *sender) lose(errno syscall.Errno) {
	s.lost()
	s.warnOnce(troubleLost, errno)
}

func (s *sender) warnOnce(t trouble, errno syscall.Errno) {
	if !s.warned[t].Swap(true) {
		s.warning(troubles[t], os.NewSyscallError("sendmsg", errno))
	}
}

// acquire keeps the descriptors open until releaseRef. It reports false once
// the sender is closed.
func (s *sender) acquire() bool {
	if s.refs.Add(1) > 0 {
		return true
	}
	s.releaseRef()
	return false
}

func (s *sender) releaseRef() {
	if s.refs.Add(-1) == math.MinInt64 {
		s.closeFDs()
	}
}

// close lets sends in flight end and then closes the descriptors. It is called
// once.
func (s *sender) close() {
	if s.refs.Add(math.MinInt64) == math.MinInt64 {
		s.closeFDs()
	}
}

func (s *sender) closeFDs() {
	s.shut.Do(func() {
		for _, fd := range s.owned {
			if fd >= 0 {
				unix.Close(fd)
			}
		}
	})
}
