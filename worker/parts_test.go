package worker

import (
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/internal/udpmsg"
	"github.com/holdfast-quic/holdfast/shm"
)

// The kernel's drop count wraps, and may come a little late.
func TestKernelDropsAreCountedOnce(t *testing.T) {
	s := socket{dropped: 1<<32 - 3}
	for _, step := range []struct {
		count uint32
		want  uint64
	}{{1<<32 - 3, 0}, {1<<32 - 1, 2}, {1<<32 - 2, 0}, {4, 5}, {4, 0}, {1, 0}, {6, 2}} {
		if got := s.newDrops(step.count); got != step.want {
			t.Errorf("count %d: %d new drops, want %d", step.count, got, step.want)
		}
	}
}

func TestAddrCacheReturnsOneAddrPerClient(t *testing.T) {
	var c addrCache
	a := udpmsg.Addr{Family: udpmsg.IPv4, Addr: [16]byte{192, 0, 2, 1}, Port: 5}
	first := c.get(a)
	if first.String() != "192.0.2.1:5" || c.get(a) != first {
		t.Errorf("got %v, then %v", first, c.get(a))
	}
	// Others may push it out, never change it.
	for port := range uint16(3 * addrCacheSize) {
		b := a
		b.Port = port
		if got := c.get(b); got.Port != int(port) {
			t.Fatalf("port %d became %v", port, got)
		}
	}
	if first.String() != "192.0.2.1:5" {
		t.Errorf("changed to %v", first)
	}
}

// All readers pick the same worker for an ID, only such as may be admitted to,
// and see changes of the directory.
func TestPeersArePickedFromTheDirectory(t *testing.T) {
	s := newService(t)
	d := s.segment.Directory()
	const l = 3
	d.Assign(0, 1, 7, 1<<l)
	d.Assign(1, 2, 7, 1<<l)
	d.Assign(2, 3, 7, 1<<(l+1)) // has another listener only
	d.Assign(3, 4, 8, 1<<l)
	p, q := newPeers(d, l), newPeers(d, l)
	if _, ok := p.pick(7, 0); ok {
		t.Error("picked one that does not serve")
	}
	for slot := range shm.SlotID(4) {
		d.SetServing(slot, true)
	}
	seen := map[shm.Owner]int{}
	for hash := range uint64(100) {
		a, ok := p.pick(7, hash)
		if b, _ := q.pick(7, hash); !ok || a != b {
			t.Fatalf("hash %d: %v and %v", hash, a, b)
		}
		seen[a]++
		if a, ok := p.pick(8, hash); !ok || a.Slot != 3 {
			t.Fatalf("generation 8: %v", a)
		}
	}
	if len(seen) != 2 || seen[shm.Owner{Slot: 0, Incarnation: 1}] != 50 {
		t.Errorf("picked %v", seen)
	}
	d.MarkDead(0)
	for hash := range uint64(4) {
		if a, ok := p.pick(7, hash); !ok || a.Slot != 1 {
			t.Errorf("after a death: %v %v", a, ok)
		}
	}
	if _, ok := p.pick(0, 1); ok {
		t.Error("picked of no generation")
	}
	if _, ok := p.pick(9, 1); ok {
		t.Error("picked of an unknown generation")
	}
}

func TestTrainRuns(t *testing.T) {
	id, id2 := seq(testCIDLen), append(seq(testCIDLen-1), 99)
	var data []byte
	for _, c := range [][]byte{id, id, id, id2, id} {
		data = append(data, shortPacket(c, 100)...)
	}
	var tr train
	for _, tt := range []struct {
		name        string
		data        []byte
		limit, want int
	}{
		{"as far as the ID goes", data, 10, 300},
		{"as far as asked", data, 2, 200},
		{"one", data[300:], 10, 100},
		{"short last one", data[:250], 10, 250},
		{"last one too short for an ID", data[:210], 10, 200},
		{"long header", longPacket(version1, 2, id, nil, 300), 10, 100},
	} {
		tr.set(fromSocket, tt.data, 100)
		h := parseHeader(tr.first(), testCIDLen)
		if got := tr.run(&h, tt.limit); got != tt.want {
			t.Errorf("%s: %d bytes, want %d", tt.name, got, tt.want)
		}
	}
}

// The clock is the one that all processes share.
func TestClockIsMonotonicTime(t *testing.T) {
	a, err := newClock()
	must(t, err)
	b, err := newClock()
	must(t, err)
	if d := time.Duration(a.now() - b.now()).Abs(); d > 10*time.Millisecond {
		t.Errorf("two clocks are %v apart", d)
	}
}

func TestPathSet(t *testing.T) {
	var s pathSet
	a := udpmsg.Addr{Family: udpmsg.IPv4, Addr: [16]byte{10, 0, 0, 1}, Port: 1}
	if s.has(&a) {
		t.Error("has what was not added")
	}
	s.add(&a)
	b := a
	b.Port = 2
	if !s.has(&b) {
		t.Error("another port is another path")
	}
	b.Addr[0] = 11
	if s.has(&b) {
		t.Error("another address is the same path")
	}
}
