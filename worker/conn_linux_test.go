package worker

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/holdfast-quic/holdfast/connid"
	"github.com/holdfast-quic/holdfast/internal/udpmsg"
	"github.com/holdfast-quic/holdfast/packetqueue"
	"github.com/holdfast-quic/holdfast/shm"
)

// sink collects what a conn gives quic-go, read by the test itself.
type sink struct {
	m        *member
	messages []ipv4.Message
	got      []datagram
}

type datagram struct {
	data, oob []byte
	from      string
}

func (m *member) sink() *sink {
	s := &sink{m: m, messages: make([]ipv4.Message, 8)}
	for i := range s.messages {
		s.messages[i] = ipv4.Message{Buffers: [][]byte{make([]byte, maxDatagram)}, OOB: make([]byte, 128)}
	}
	return s
}

// take reads until n datagrams are there.
func (s *sink) take(n int) []datagram {
	s.m.t.Helper()
	s.got = nil
	must(s.m.t, s.m.l.conn.SetReadDeadline(time.Now().Add(5*time.Second)))
	for len(s.got) < n {
		k, err := s.m.l.conn.ReadBatch(s.messages, 0)
		if err != nil {
			s.m.t.Fatalf("%d of %d datagrams, then %v", len(s.got), n, err)
		}
		for _, m := range s.messages[:k] {
			s.got = append(s.got, datagram{
				data: append([]byte(nil), m.Buffers[0][:m.N]...),
				oob:  append([]byte(nil), m.OOB[:m.NN]...), from: m.Addr.String(),
			})
		}
	}
	return s.got
}

// pump lets the conn work until until is true, and expects nothing from it.
func (s *sink) pump(what string, until func() bool) {
	s.m.t.Helper()
	for deadline := time.Now().Add(5 * time.Second); ; {
		must(s.m.t, s.m.l.conn.SetReadDeadline(time.Now().Add(time.Millisecond)))
		k, err := s.m.l.conn.ReadBatch(s.messages, 0)
		if k != 0 {
			s.m.t.Fatalf("unexpected datagram: %x", s.messages[0].Buffers[0][:s.messages[0].N])
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			s.m.t.Fatal(err)
		}
		if until() {
			return
		}
		if time.Now().After(deadline) {
			s.m.t.Fatalf("not in time: %s", what)
		}
	}
}

// read makes the conn read these sockets and no others.
func (s *sink) read(indices ...int) {
	s.m.t.Helper()
	s.m.l.read(indices, nil)
	s.pump("plan is taken over", func() bool { return !s.m.l.conn.gate.changed(s.m.l.conn.rx.plan) })
}

// newID returns a connection ID of m.
func (m *member) newID() []byte {
	m.t.Helper()
	id, err := m.cids.generator.Generate()
	must(m.t, err)
	return id.AppendTo(nil)
}

// shooter sends hand-made datagrams.
type shooter struct {
	t  testing.TB
	fd int
	to udpmsg.Addr
}

func newShooter(t testing.TB, remote string) *shooter {
	t.Helper()
	addr, err := net.ResolveUDPAddr("udp", remote)
	must(t, err)
	to, _ := udpmsg.AddrFrom(addr)
	domain := unix.AF_INET
	if to.Family == udpmsg.IPv6 {
		domain = unix.AF_INET6
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	return &shooter{t: t, fd: fd, to: to}
}

// send sends b with an ECN mark; segment other than zero splits it.
func (s *shooter) send(b []byte, ecn uint8, segment uint16) {
	s.t.Helper()
	oob := udpmsg.AppendECN(nil, s.to.Family, ecn)
	if segment != 0 {
		cm := make([]byte, unix.CmsgSpace(2))
		binary.NativeEndian.PutUint64(cm, uint64(unix.CmsgLen(2)))
		binary.NativeEndian.PutUint32(cm[8:], unix.IPPROTO_UDP)
		binary.NativeEndian.PutUint32(cm[12:], unix.UDP_SEGMENT)
		binary.NativeEndian.PutUint16(cm[16:], segment)
		oob = append(oob, cm...)
	}
	if errno := udpmsg.Send(s.fd, s.to.Family, b, oob, s.to); errno != 0 {
		s.t.Fatal(errno)
	}
}

// What a datagram comes with is the same whether it was read by its owner or
// forwarded: sender, ECN mark, local address and interface.
func TestForwardedDatagramKeepsItsCircumstances(t *testing.T) {
	for _, tt := range []struct{ name, network, bind, host string }{
		{"IPv4", "udp4", "127.0.0.1:0", "127.0.0.1"},
		{"IPv4 wildcard", "udp4", "0.0.0.0:0", "127.0.0.2"},
		{"IPv6 wildcard", "udp6", "[::]:0", "::1"},
		{"IPv4 on dual stack", "udp", "[::]:0", "127.0.0.3"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newService(t)
			sock := s.listen(tt.network, tt.bind)
			a, b := s.start(0, 1, sock), s.start(1, 2, sock)
			s.current(1)
			inA, inB := a.sink(), b.sink()
			gun := newShooter(t, address(t, sock, tt.host))
			for ecn := range uint8(4) {
				packet := shortPacket(a.newID(), 60)
				inA.read(0)
				gun.send(packet, ecn, 0)
				direct := inA.take(1)[0]
				inA.read()

				inB.read(0)
				forwarded := b.count(shm.PacketsForwarded)
				gun.send(packet, ecn, 0)
				inB.pump("B forwards", func() bool { return b.count(shm.PacketsForwarded) == forwarded+1 })
				other := inA.take(1)[0]
				inB.read()

				if string(other.data) != string(packet) || string(direct.data) != string(packet) {
					t.Errorf("data differs")
				}
				if string(direct.oob) != string(other.oob) {
					t.Errorf("control data differs:\n direct    %x\n forwarded %x", direct.oob, other.oob)
				}
				if direct.from != other.from {
					t.Errorf("sender %s, forwarded %s", direct.from, other.from)
				}
				checkOOB(t, other.oob, ecn, tt.host, tt.bind == "127.0.0.1:0")
			}
			s.checkSums()
		})
	}
}

// checkOOB reads control data as quic-go does.
func checkOOB(t *testing.T, oob []byte, ecn uint8, local string, bound bool) {
	t.Helper()
	messages, err := unix.ParseSocketControlMessage(oob)
	must(t, err)
	var sawECN, sawInfo bool
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_TOS,
			m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_TCLASS:
			sawECN = m.Data[0] == ecn
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO:
			sawInfo = net.IP(m.Data[8:12]).Equal(net.ParseIP(local))
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO:
			sawInfo = net.IP(m.Data[:16]).Equal(net.ParseIP(local))
		}
	}
	if !sawECN || sawInfo == bound {
		t.Errorf("ECN %d told: %v; local address told: %v", ecn, sawECN, sawInfo)
	}
}

// A train behind one address may hold packets of several connections: each run
// goes to its owner, in order, and unknown ones are answered.
func TestTrainWithMixedConnectionIDs(t *testing.T) {
	s := newService(t)
	sock := s.listen("udp4", "127.0.0.1:0")
	a, b := s.start(0, 1, sock), s.start(1, 1, sock)
	s.current(1)
	b.read(0)
	inA, inB := a.sink(), b.sink()
	gun := newShooter(t, address(t, sock, "127.0.0.1"))
	idA, idA2, idB := a.newID(), a.newID(), b.newID()
	unknown := seq(testCIDLen)
	var train []byte
	order := [][]byte{idA, idA, idB, idA, idA2, idB, idB, unknown, idA, idA, idA, idB}
	for i, id := range order {
		p := shortPacket(id, 100)
		p[99] = byte(i)
		train = append(train, p...)
	}
	train = train[:len(train)-40] // the last one is shorter
	gun.send(train, 1, 100)

	var wantA, wantB []byte
	for i, id := range order[:len(order)-1] {
		switch {
		case &id[0] == &idA[0] || &id[0] == &idA2[0]:
			wantA = append(wantA, byte(i))
		default:
			wantB = append(wantB, byte(i))
		}
	}
	gotB := inB.take(len(wantB) + 1)
	gotA := inA.take(len(wantA))
	for i, w := range wantA {
		if d := gotA[i].data; len(d) != 100 || d[99] != w {
			t.Errorf("A's datagram %d: %x, want number %d", i, d, w)
		}
	}
	for i, w := range wantB {
		if d := gotB[i].data; len(d) != 100 || d[99] != w {
			t.Errorf("B's datagram %d: %x, want number %d", i, d, w)
		}
	}
	if last := gotB[len(gotB)-1].data; len(last) != 60 {
		t.Errorf("last datagram has %d bytes, want 60", len(last))
	}
	if n := b.count(shm.UnknownCID); n != 1 {
		t.Errorf("unknown connection IDs: %d", n)
	}
	if got, want := b.count(shm.PacketsForwarded), uint64(len(wantA)); got != want {
		t.Errorf("forwarded %d, want %d", got, want)
	}
	s.checkSums()
}

// A train of one connection is one record, and is dealt out over several calls.
func TestTrainForwardsWhole(t *testing.T) {
	s := newService(t)
	sock := s.listen("udp4", "127.0.0.1:0")
	a, b := s.start(0, 1, sock), s.start(1, 1, sock)
	s.current(1)
	b.read(0)
	inA, inB := a.sink(), b.sink()
	gun := newShooter(t, address(t, sock, "127.0.0.1"))
	const n, size = 40, 1200
	id := a.newID()
	var train []byte
	for i := range n {
		p := shortPacket(id, size)
		p[size-1] = byte(i)
		train = append(train, p...)
	}
	gun.send(train, 2, size)
	inB.pump("B forwards", func() bool { return b.count(shm.PacketsForwarded) == n })
	got := inA.take(n)
	for i, d := range got {
		if len(d.data) != size || d.data[size-1] != byte(i) {
			t.Fatalf("datagram %d: %d bytes, number %d", i, len(d.data), d.data[len(d.data)-1])
		}
	}
	if bells := b.count(shm.DoorbellsRung); bells > 1 {
		t.Errorf("%d wake-ups for one train", bells)
	}
	s.checkSums()
}

// Rubbish is dropped or answered, and counted under its name. C113
func TestRubbishIsCounted(t *testing.T) {
	s := newService(t)
	sock := s.listen("udp4", "127.0.0.1:0")
	a := s.start(0, 1, sock)
	s.current(1)
	a.read(0)
	in := a.sink()
	gun := newShooter(t, address(t, sock, "127.0.0.1"))
	const n = 25 // fits the socket's buffer
	for range n {
		gun.send([]byte{0x40, 1, 2}, 0, 0)
		gun.send(longPacket(0xabcd1234, 0, seq(8), seq(8), 1200), 0, 0)
		gun.send(shortPacket(seq(testCIDLen), 60), 0, 0)
		gun.send(longPacket(version1, 2, seq(testCIDLen), seq(8), 60), 0, 0)
	}
	in.take(2 * n)
	for c, want := range map[shm.Counter]uint64{
		shm.DropMalformed: n, shm.UnknownVersion: n, shm.UnknownCID: n, shm.DropOrphan: n,
		shm.PacketsReceived: 4 * n, shm.PacketsDelivered: 2 * n,
	} {
		eventually(t, c.String(), func() bool {
			if a.count(c) != want {
				in.pump("count", func() bool { return true })
			}
			return a.count(c) == want
		})
	}
	s.checkSums()
}

// Resets have a rate; what is over it is dropped and counted. C113
func TestResetsAreLimited(t *testing.T) {
	var l resetLimiter
	allowed := 0
	for range 10 * resetBurst {
		if l.allow(1e9) {
			allowed++
		}
	}
	if allowed != resetBurst {
		t.Errorf("%d at once, want %d", allowed, resetBurst)
	}
	if !l.allow(1e9 + int64(time.Second)) {
		t.Error("still limited a second later")
	}
}

// Whatever a read returns, the conn goes on: quic-go would end all connections.
func TestReadErrorsAreSwallowed(t *testing.T) {
	s := newService(t)
	sock := s.listen("udp4", "127.0.0.1:0")
	a := s.start(0, 1, sock)
	s.current(1)
	a.read(0)
	in := a.sink()
	gun := newShooter(t, address(t, sock, "127.0.0.1"))
	id := a.newID()
	for _, errno := range []syscall.Errno{
		unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETDOWN, unix.ENOMEM, unix.ENOBUFS,
		unix.EBADF, unix.ENOTSOCK, unix.EFAULT, unix.EINVAL, unix.EIO, unix.EPIPE, unix.EMSGSIZE,
	} {
		injected := false
		a.l.conn.rx.receiveFn = func(b *udpmsg.Batch, fd int) (int, syscall.Errno) {
			if !injected {
				injected = true
				return 0, errno
			}
			return b.Receive(fd)
		}
		gun.send(shortPacket(id, 60), 0, 0)
		gun.send(shortPacket(id, 60), 0, 0)
		if got := in.take(2); len(got) != 2 {
			t.Errorf("%v: %d datagrams", errno, len(got))
		}
	}
	s.checkSums()
}

// A record for an earlier incarnation of the slot, and one that belongs
// elsewhere, are dropped; an Initial meant for this worker is accepted though
// its generation is not current, as the readiness probe needs it. C097
func TestPulledRecords(t *testing.T) {
	s := newService(t)
	sock := s.listen("udp4", "127.0.0.1:0")
	a, b := s.start(0, 1, sock), s.start(1, 2, sock)
	s.current(1)
	in := b.sink()
	push := func(target uint32, payload []byte) {
		p, err := packetqueue.Lease(s.segment.Queue(1), packetqueue.Token(3, 99), testListener.ID)
		must(t, err)
		must(t, p.Push(&packetqueue.Record{
			Target: target, Payload: payload,
			Remote: packetqueue.Endpoint{Family: 4, Addr: [16]byte{127, 0, 0, 1}, Port: 9},
		}))
		s.segment.SupervisorCounters().Add(shm.ProbePushed, 1)
		p.Release()
	}
	me := uint32(b.node.self.Incarnation)
	push(me+1, shortPacket(b.newID(), 60))
	push(me, shortPacket(a.newID(), 60))
	push(me, []byte{1, 2, 3})
	push(me, longPacket(version1, 2, seq(testCIDLen), nil, 60))
	in.pump("rubbish is read", func() bool {
		return b.count(shm.DropStaleRecord) == 1 && b.count(shm.DropLoop) == 3
	})
	initial := longPacket(version1, 0, seq(8), seq(8), 1200)
	push(me, initial)
	if got := in.take(1)[0]; string(got.data) != string(initial) {
		t.Errorf("got %x", got.data)
	}
	if n := b.count(shm.PulledAccepted); n != 1 {
		t.Errorf("accepted %d", n)
	}
	id, err := connid.FromBytes(seq(8))
	must(t, err)
	if hit, ok := b.node.table.Lookup(id, 0); !ok || hit.Owner != b.node.self {
		t.Errorf("table names %v %v", hit, ok)
	}
	s.checkSums()
}

// A listener that no worker of the admitted generation has. An unknown
// connection is answered all the same.
func TestNoWorkerOfTheAdmittedGeneration(t *testing.T) {
	s := newService(t)
	sock := s.listen("udp4", "127.0.0.1:0")
	a := s.start(0, 1, sock)
	s.current(2)
	a.read(0)
	in := a.sink()
	gun := newShooter(t, address(t, sock, "127.0.0.1"))
	gun.send(longPacket(version1, 0, seq(8), seq(8), 1200), 0, 0)
	gun.send(shortPacket(seq(testCIDLen), 60), 0, 0)
	in.take(1)
	if n := a.count(shm.DropNoListener); n != 1 {
		t.Errorf("dropped %d", n)
	}
	s.checkSums()
}
