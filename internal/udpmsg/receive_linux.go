package udpmsg

import (
	"encoding/binary"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// oobSize holds every control message that Prepare turns on, on a dual-stack
// socket too.
const oobSize = 256

// MaxDatagram is the size of buffer that no datagram or train exceeds.
const MaxDatagram = 1 << 16

// Message is one received datagram or train of equal-sized datagrams (the last
// may be shorter) from one sender.
type Message struct {
	Remote     Addr
	Local      Addr   // destination address of the datagram; no port
	IfIndex    uint32 // interface that it came in by
	ECN        uint8
	Segment    int    // size of a segment of a train; zero: one datagram
	Dropped    uint32 // datagrams that the kernel dropped on this socket, so far
	HasDropped bool   // Dropped is known
	Payload    []byte // valid until the next Receive
}

// mmsghdr is struct mmsghdr of recvmmsg(2).
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
	_   [unsafe.Sizeof(uintptr(0)) - 4]byte
}

// Batch receives up to a fixed number of messages with one system call into
// its own buffers. It is used by one goroutine at a time.
type Batch struct {
	hdrs  []mmsghdr
	iovs  []unix.Iovec
	names []unix.RawSockaddrInet6
	oobs  []byte
	data  []byte
	size  int
	msg   Message
}

// NewBatch returns a batch of n messages with buffers of size bytes each.
func NewBatch(n, size int) *Batch {
	b := &Batch{
		hdrs:  make([]mmsghdr, n),
		iovs:  make([]unix.Iovec, n),
		names: make([]unix.RawSockaddrInet6, n),
		oobs:  make([]byte, n*oobSize),
		data:  make([]byte, n*size),
		size:  size,
	}
	for i := range b.hdrs {
		b.iovs[i].Base = &b.data[i*size]
		b.iovs[i].SetLen(size)
		h := &b.hdrs[i].hdr
		h.Iov = &b.iovs[i]
		h.SetIovlen(1)
		h.Name = (*byte)(unsafe.Pointer(&b.names[i]))
		h.Control = &b.oobs[i*oobSize]
	}
	return b
}

// Len returns how many messages one Receive can return.
func (b *Batch) Len() int { return len(b.hdrs) }

// Receive takes what the socket holds, up to Len messages, without blocking.
// It returns EAGAIN when there is none; fewer than Len messages mean that the
// socket was empty after them. Messages of the last Receive are overwritten.
func (b *Batch) Receive(fd int) (int, syscall.Errno) {
	for i := range b.hdrs {
		h := &b.hdrs[i].hdr
		h.Namelen = unix.SizeofSockaddrInet6
		h.SetControllen(oobSize)
		h.Flags = 0
	}
	for {
		// Raw: the call never sleeps, but copying many datagrams takes longer
		// than the 20 us after which Go's monitor would give the processor to
		// another thread. Taking it back costs more than the call.
		n, _, errno := syscall.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd),
			uintptr(unsafe.Pointer(&b.hdrs[0])), uintptr(len(b.hdrs)), unix.MSG_DONTWAIT, 0, 0)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return 0, errno
		}
		return int(n), 0
	}
}

// Message parses message i of the last Receive. The result is valid until the
// next call of Message or Receive.
func (b *Batch) Message(i int) *Message {
	h := &b.hdrs[i]
	m := &b.msg
	*m = Message{}
	n := min(int(h.len), b.size)
	m.Payload = b.data[i*b.size : i*b.size+n : i*b.size+n]
	m.Remote = fromSockaddr(&b.names[i])
	m.parse(b.oobs[i*oobSize : i*oobSize+min(int(h.hdr.Controllen), oobSize)])
	if m.Segment <= 0 || m.Segment >= n {
		m.Segment = 0
	}
	return m
}

// fromSockaddr reads a sockaddr_in or sockaddr_in6.
func fromSockaddr(sa *unix.RawSockaddrInet6) Addr {
	switch sa.Family {
	case unix.AF_INET:
		s4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(sa))
		a := Addr{Family: IPv4, Port: port(s4.Port)}
		copy(a.Addr[:4], s4.Addr[:])
		return a
	case unix.AF_INET6:
		a := Addr{Family: IPv6, Port: port(sa.Port), Addr: sa.Addr, Zone: sa.Scope_id}
		a.unmap()
		return a
	}
	return Addr{}
}

// port converts between the host's and the network's byte order, which is the
// same step in both directions.
func port(p uint16) uint16 {
	var b [2]byte
	binary.NativeEndian.PutUint16(b[:], p)
	return binary.BigEndian.Uint16(b[:])
}
