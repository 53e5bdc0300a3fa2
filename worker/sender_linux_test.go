package worker

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
	"github.com/holdfast-quic/holdfast/internal/udpmsg"
)

func newTestSender(t *testing.T, network, address string) (*sender, *socket) {
	t.Helper()
	f := newService(t).listen(network, address)
	sock, err := newSocket(f, lifeline.Socket{Network: networkUDP})
	must(t, err)
	t.Cleanup(sock.close)
	s, err := newSender([]*socket{sock})
	must(t, err)
	return s, sock
}

// segmentOOB asks for segmentation, as quic-go does.
func segmentOOB(oob []byte, size uint16) []byte {
	cm := make([]byte, unix.CmsgSpace(2))
	cm[0], cm[8], cm[12] = byte(unix.CmsgLen(2)), unix.IPPROTO_UDP, unix.UDP_SEGMENT
	cm[16], cm[17] = byte(size), byte(size>>8)
	return append(oob, cm...)
}

// Errors of sending end no connection. Those that quic-go can do something
// about reach it in the form that it knows. C104
func TestSendErrors(t *testing.T) {
	to := &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9}
	ecn := udpmsg.AppendECN(nil, udpmsg.IPv4, 2)
	both := udpmsg.AppendECN(segmentOOB(nil, 100), udpmsg.IPv4, 2)
	gso := segmentOOB(nil, 100)
	for _, tt := range []struct {
		name string
		oob  []byte
		// fails says what the kernel does with a datagram.
		fails func(hasECN, hasGSO bool) syscall.Errno
		want  error // nil: swallowed or cured
		lost  uint64
	}{
		{"ENOBUFS", nil, always(unix.ENOBUFS), nil, 1},
		{"EPERM", nil, always(unix.EPERM), nil, 1},
		{"ENETUNREACH", nil, always(unix.ENETUNREACH), nil, 1},
		{"EHOSTUNREACH", nil, always(unix.EHOSTUNREACH), nil, 1},
		{"ECONNREFUSED", nil, always(unix.ECONNREFUSED), nil, 1},
		{"EINVAL without options", nil, always(unix.EINVAL), nil, 1},
		{"EAGAIN for ever", nil, always(unix.EAGAIN), nil, 1},
		{"EMSGSIZE", nil, always(unix.EMSGSIZE), unix.EMSGSIZE, 0},
		{"EINVAL for GSO", gso, func(_, gso bool) syscall.Errno { return when(gso, unix.EINVAL) }, unix.EIO, 0},
		{"EIO for GSO", gso, func(_, gso bool) syscall.Errno { return when(gso, unix.EIO) }, unix.EIO, 0},
		{"EINVAL for GSO, with a mark", both, func(_, gso bool) syscall.Errno { return when(gso, unix.EINVAL) }, unix.EIO, 0},
		{"EINVAL for ECN", ecn, func(ecn, _ bool) syscall.Errno { return when(ecn, unix.EINVAL) }, nil, 0},
		{"EIO for ECN", ecn, func(ecn, _ bool) syscall.Errno { return when(ecn, unix.EIO) }, nil, 0},
		{"EINVAL for ECN in a train", both, func(ecn, _ bool) syscall.Errno { return when(ecn, unix.EINVAL) }, nil, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, _ := newTestSender(t, "udp4", "127.0.0.1:0")
			defer s.close()
			s.sendFn = func(_ int, _ uint8, _, oob []byte, _ udpmsg.Addr) syscall.Errno {
				_, hasECN := udpmsg.WithoutECN(nil, oob)
				return tt.fails(hasECN, udpmsg.SegmentSize(oob) != 0)
			}
			var lost uint64
			s.lost = func() { lost++ }
			err := s.send([]byte("datagram"), tt.oob, to)
			if !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			var sys *os.SyscallError
			if err != nil && (!errors.As(err, &sys) || sys.Syscall != "sendmsg") {
				t.Errorf("%T is not what quic-go looks for", err)
			}
			if lost != tt.lost {
				t.Errorf("%d datagrams lost, want %d", lost, tt.lost)
			}
		})
	}
}

func always(e syscall.Errno) func(bool, bool) syscall.Errno {
	return func(bool, bool) syscall.Errno { return e }
}

func when(cond bool, e syscall.Errno) syscall.Errno {
	if cond {
		return e
	}
	return 0
}

// A path that refuses ECN marks is remembered: the next datagram is sent
// without one at the first try.
func TestECNIsGivenUpPerPath(t *testing.T) {
	s, _ := newTestSender(t, "udp4", "127.0.0.1:0")
	defer s.close()
	warnings := 0
	s.warning = func(string, error) { warnings++ }
	var marked, calls int
	s.sendFn = func(_ int, _ uint8, _, oob []byte, to udpmsg.Addr) syscall.Errno {
		calls++
		_, has := udpmsg.WithoutECN(nil, oob)
		if has {
			marked++
		}
		return when(has && to.Addr[3] == 1, unix.EINVAL)
	}
	oob := udpmsg.AppendECN(nil, udpmsg.IPv4, 1)
	for range 3 {
		must(t, s.send([]byte("x"), oob, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9}))
		must(t, s.send([]byte("x"), oob, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 2), Port: 9}))
	}
	if marked != 4 || calls != 7 || warnings != 1 {
		t.Errorf("%d marked of %d sent, %d warnings", marked, calls, warnings)
	}
}

// IPv4 clients are reached over IPv4, over dual stack, and over what is not
// retiring if there is a choice.
func TestChoiceOfSendingSocket(t *testing.T) {
	svc := newService(t)
	open := func(network, address string, index int, retiring bool) *socket {
		sock, err := newSocket(svc.listen(network, address), lifeline.Socket{Network: networkUDP, Index: index, Retiring: retiring})
		must(t, err)
		t.Cleanup(sock.close)
		return sock
	}
	v4, v4old := open("udp4", "127.0.0.1:0", 1, false), open("udp4", "127.0.0.1:0", 0, true)
	dual := open("udp", "[::]:0", 2, false)
	for _, tt := range []struct {
		name             string
		sockets          []*socket
		family4, family6 uint8
		local4           udpmsg.Addr
	}{
		{"one", []*socket{v4old}, udpmsg.IPv4, 0, v4old.local},
		{"not retiring", []*socket{v4old, v4}, udpmsg.IPv4, 0, v4.local},
		{"own family", []*socket{dual, v4}, udpmsg.IPv4, udpmsg.IPv6, v4.local},
		{"dual stack rather than retiring", []*socket{dual, v4old}, udpmsg.IPv6, udpmsg.IPv6, dual.local},
	} {
		s, err := newSender(tt.sockets)
		must(t, err)
		if o := s.to4.Load(); o.family != tt.family4 || o.local != tt.local4 {
			t.Errorf("%s: IPv4 leaves from %v", tt.name, o.local)
		}
		if o := s.to6.Load(); (o == nil) != (tt.family6 == 0) {
			t.Errorf("%s: IPv6 leaves from %v", tt.name, o)
		}
		s.close()
	}
	if _, err := newSender(nil); !errors.Is(err, errNoSocket) {
		t.Errorf("no socket: %v", err)
	}
}

// After close nothing is sent, and descriptors are closed when the last send
// in flight has ended.
func TestSenderClose(t *testing.T) {
	s, _ := newTestSender(t, "udp4", "127.0.0.1:0")
	fd := s.to4.Load().fd
	inFlight := make(chan struct{})
	proceed := make(chan struct{})
	s.sendFn = func(int, uint8, []byte, []byte, udpmsg.Addr) syscall.Errno {
		close(inFlight)
		<-proceed
		_, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
		if err != nil {
			t.Error("descriptor was closed under a send")
		}
		return 0
	}
	done := make(chan error)
	to := &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9}
	go func() { done <- s.send([]byte("x"), nil, to) }()
	<-inFlight
	s.close()
	close(proceed)
	must(t, <-done)
	if err := s.send([]byte("x"), nil, to); !errors.Is(err, net.ErrClosed) {
		t.Errorf("send after close: %v", err)
	}
}
