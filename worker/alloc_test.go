package worker

import (
	"net"
	"testing"

	"golang.org/x/net/ipv4"

	"github.com/holdfast-quic/holdfast/internal/udpmsg"
	"github.com/holdfast-quic/holdfast/shm"
)

// Receiving, steering, delivering and forwarding a packet, pulling it, and
// sending one allocate nothing.
func TestPacketPathDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	s := newService(t)
	sock := s.listen("udp4", "127.0.0.1:0")
	a, b := s.start(0, 1, sock), s.start(1, 1, sock)
	s.current(1)
	b.read(0)
	inA, inB := a.sink(), b.sink()
	gun := newShooter(t, address(t, sock, "127.0.0.1"))
	local, remote := shortPacket(b.newID(), 600), shortPacket(a.newID(), 600)
	oob := udpmsg.AppendECN(nil, udpmsg.IPv4, 1)
	shoot := func(p []byte) {
		if errno := udpmsg.Send(gun.fd, udpmsg.IPv4, p, oob, gun.to); errno != 0 {
			t.Fatal(errno)
		}
	}
	read := func(in *sink, messages []ipv4.Message) {
		if n, err := in.m.l.conn.ReadBatch(messages, 0); n == 0 || err != nil {
			t.Fatal(n, err)
		}
	}
	// The first packets fill caches and lease lanes.
	shoot(remote)
	shoot(local)
	read(inB, inB.messages)
	read(inA, inA.messages)
	if n := testing.AllocsPerRun(200, func() {
		shoot(remote)
		shoot(local)
		read(inB, inB.messages)
		read(inA, inA.messages)
	}); n != 0 {
		t.Errorf("direct and forwarded: %v allocations", n)
	}
	client := &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1).To4(), Port: 9}
	if n := testing.AllocsPerRun(200, func() {
		if _, _, err := b.l.conn.WriteMsgUDP(local, oob, client); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("send: %v allocations", n)
	}
	if b.count(shm.PacketsForwarded) < 200 || a.count(shm.PulledDelivered) < 200 {
		t.Error("nothing was forwarded")
	}
}

func BenchmarkForward(b *testing.B) {
	s := newService(b)
	sock := s.listen("udp4", "127.0.0.1:0")
	owner, reader := s.start(0, 1, sock), s.start(1, 1, sock)
	s.current(1)
	reader.read(0)
	in := owner.sink()
	r := &reader.l.conn.rx
	r.adopt()
	packet := shortPacket(owner.newID(), 1200)
	b.ReportAllocs()
	for b.Loop() {
		r.messages = in.messages
		r.direct.set(fromSocket, packet, 0)
		r.direct.remote = udpmsg.Addr{Family: udpmsg.IPv4, Port: 9}
		r.now = r.node.clock.now()
		r.deal(&r.direct)
		r.finish()
		if n, err := owner.l.conn.ReadBatch(in.messages, 0); n != 1 || err != nil {
			b.Fatal(n, err)
		}
	}
}

func BenchmarkSteer(b *testing.B) {
	s := newService(b)
	sock := s.listen("udp4", "127.0.0.1:0")
	m := s.start(0, 1, sock)
	in := m.sink()
	r := &m.l.conn.rx
	packet := shortPacket(m.newID(), 1200)
	b.ReportAllocs()
	for b.Loop() {
		r.messages, r.filled = in.messages, 0
		r.direct.set(fromSocket, packet, 0)
		r.direct.remote = udpmsg.Addr{Family: udpmsg.IPv4, Port: 9}
		r.deal(&r.direct)
	}
}
