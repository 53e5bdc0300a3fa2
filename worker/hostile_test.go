package worker

import (
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/connid"
	"github.com/holdfast-quic/holdfast/packetqueue"
	"github.com/holdfast-quic/holdfast/shm"
)

// The last packets that a reader forwards before its sockets are taken away
// wake their owner, although the lanes go back at that moment.
func TestLastForwardBeforeTheDrainRings(t *testing.T) {
	s := newService(t)
	sock := s.listen("udp4", "127.0.0.1:0")
	a, b := s.start(0, 1, sock), s.start(1, 1, sock)
	s.current(1)
	inA, inB := a.sink(), b.sink()
	inA.read(0)
	inB.pump("B is armed", func() bool { return true })
	gun := newShooter(t, address(t, sock, "127.0.0.1"))

	// One more datagram than A's messages: it is left for the next ReadBatch.
	const size = 100
	idA, idB := a.newID(), b.newID()
	var train []byte
	for range len(inA.messages) {
		train = append(train, shortPacket(idA, size)...)
	}
	train = append(train, shortPacket(idB, size)...)
	gun.send(train, 0, size)
	inA.take(len(inA.messages))

	got := make(chan int, 1)
	must(t, b.l.conn.SetReadDeadline(time.Now().Add(2*time.Second)))
	wakeups := b.count(shm.Wakeups)
	go func() {
		n, _ := b.l.conn.ReadBatch(inB.messages, 0)
		got <- n
	}()
	eventually(t, "B sleeps", func() bool { return b.count(shm.Wakeups) > wakeups })
	inA.read()
	if n := <-got; n != 1 {
		t.Errorf("B was not woken: %d datagrams", n)
	}
	if n := a.count(shm.DoorbellsRung); n != 1 {
		t.Errorf("A rang %d times, want once", n)
	}
	s.checkSums()
}

// Packets of a connection that come in on a listener which its owner does not
// serve are dropped. In the owner's queue nobody would ever read them, and the
// lanes that they are in would be lost to those who need them.
func TestPacketsOnAListenerThatTheOwnerLacks(t *testing.T) {
	s := newService(t)
	sock := s.listen("udp4", "127.0.0.1:0")
	a, b := s.start(0, 1, sock), s.start(1, 2, sock)
	s.segment.Directory().SetListeners(0, 1<<(testListener.ID+1))
	s.current(2)
	inB := b.sink()
	inB.read(0)
	gun := newShooter(t, address(t, sock, "127.0.0.1"))
	gun.send(shortPacket(a.newID(), 60), 0, 0)
	inB.pump("the packet is dropped", func() bool { return b.count(shm.DropNoListener) == 1 })
	if n := packetqueue.Pending(s.segment.Queue(0)); n != 0 {
		t.Errorf("%d packets in a queue where nobody reads them", n)
	}
	s.checkSums()
}

// An ID that a client chose for its first packets does not become that of an
// established connection by anything that the client sends: nobody who has
// finished a handshake uses it any more, and entries of established
// connections are not bounded to a share of the table.
func TestChosenIDIsNeverEstablished(t *testing.T) {
	s := newService(t)
	sock := s.listen("udp4", "127.0.0.1:0")
	a := s.start(0, 1, sock)
	s.current(1)
	a.read(0)
	in := a.sink()
	gun := newShooter(t, address(t, sock, "127.0.0.1"))
	chosen := seq(testCIDLen) // as long as an ID of ours
	gun.send(longPacket(version1, 0, chosen, seq(8), 1200), 0, 0)
	gun.send(shortPacket(chosen, 60), 0, 0)
	in.take(2)
	id, err := connid.FromBytes(chosen)
	must(t, err)
	if hit, ok := a.node.table.Lookup(id, 0); !ok || hit.Kind != shm.KindHandshaking {
		t.Errorf("entry %v, found %v", hit, ok)
	}

	// One of ours does.
	issued := a.newID()
	a.node.issued(issued)
	gun.send(shortPacket(issued, 60), 0, 0)
	in.take(1)
	id, err = connid.FromBytes(issued)
	must(t, err)
	if hit, ok := a.node.table.Lookup(id, 0); !ok || hit.Kind != shm.KindEstablished {
		t.Errorf("entry %v, found %v", hit, ok)
	}
	s.checkSums()
}

// While the record of the owner is damaged nobody can tell whether it lives: its
// packets are dropped, and not answered in a way that would end the connection.
func TestDamagedRecordIsNoDeath(t *testing.T) {
	s := newService(t)
	sock := s.listen("udp4", "127.0.0.1:0")
	a, b := s.start(0, 1, sock), s.start(1, 1, sock)
	s.current(1)
	b.read(0)
	inB := b.sink()
	gun := newShooter(t, address(t, sock, "127.0.0.1"))
	id := a.newID()
	const identity = 2*4096 + 128 // docs/shm-abi.md: identity of slot 0
	for i := range 8 {
		s.region[identity+i] ^= 0x81
		gun.send(shortPacket(id, 60), 0, 0)
		gun.send(longPacket(version1, 0, id, seq(8), 1200), 0, 0)
		gun.send(longPacket(version1, 2, id, seq(8), 60), 0, 0)
		inB.pump("packets are dropped", func() bool { return b.count(shm.DropDeadTarget) == uint64(3*(i+1)) })
		if n := s.segment.Repair(); n != 1 {
			t.Errorf("%d words repaired", n)
		}
	}
	gun.send(shortPacket(id, 60), 0, 0)
	inB.pump("the packet is forwarded", func() bool { return b.count(shm.PacketsForwarded) == 1 })
	a.sink().take(1)
	s.checkSums()
}
