package shm

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/holdfast-quic/holdfast/connid"
)

func TestInsertLookupRemove(t *testing.T) {
	s, o := segment(t, 64, 2)
	tab := s.Table()
	if _, ok := tab.Lookup(testID(1), 0); ok {
		t.Error("found in an empty table")
	}
	if w, err := tab.Insert(testID(1), o[0], KindHandshaking, 5); err != nil || w != o[0] {
		t.Fatal(w, err)
	}
	if w, err := tab.Insert(testID(1), o[1], KindEstablished, 5); err != nil || w != o[0] {
		t.Errorf("the second owner is told %v, %v", w, err)
	}
	if err := tab.Establish(testID(1), o[1], 5); !errors.Is(err, ErrOwned) {
		t.Errorf("a stranger establishes: %v", err)
	}
	if h, ok := tab.Lookup(testID(1), 5); !ok || h != (Hit{o[0], KindHandshaking}) {
		t.Errorf("%v, %v", h, ok)
	}
	mustUsage(t, tab, 1, 1)
	for range 2 {
		if err := tab.Establish(testID(1), o[0], 6); err != nil {
			t.Fatal(err)
		}
	}
	if w, err := tab.Insert(testID(1), o[0], KindHandshaking, 6); err != nil || w != o[0] {
		t.Errorf("insert again: %v, %v", w, err)
	}
	if h, ok := tab.Lookup(testID(1), 6); !ok || h.Kind != KindEstablished {
		t.Errorf("demoted: %v, %v", h, ok)
	}
	mustUsage(t, tab, 1, 0)
	mustCheck(t, s)
	if tab.Remove(testID(1), o[1]) || tab.Remove(testID(2), o[0]) || tab.Remove(testID(1), Owner{}) || tab.Remove(testID(1), Owner{1024, o[0].Incarnation}) {
		t.Error("removed for a stranger")
	}
	if !tab.Remove(testID(1), o[0]) || tab.Remove(testID(1), o[0]) {
		t.Error("not removed exactly once")
	}
	mustUsage(t, tab, 0, 0)
	if err := tab.Establish(testID(3), o[1], 1); err != nil {
		t.Error(err)
	}
	mustUsage(t, tab, 1, 0)
	mustCheck(t, s)
}

func TestEveryLengthIsItsOwnKey(t *testing.T) {
	s, o := segment(t, 256, 1)
	for n := range connid.MaxLen + 1 {
		if _, err := s.Table().Insert(mustID(make([]byte, n)), o[0], KindEstablished, 0); err != nil {
			t.Fatal(err)
		}
	}
	mustUsage(t, s.Table(), connid.MaxLen+1, 0)
	mustCheck(t, s)
}

func TestDeadOwnersAreFree(t *testing.T) {
	s, o := segment(t, 64, 2)
	tab := s.Table()
	if _, err := tab.Insert(testID(1), o[0], KindEstablished, 0); err != nil {
		t.Fatal(err)
	}
	s.Directory().MarkDead(o[0].Slot)
	if _, ok := tab.Lookup(testID(1), 0); ok {
		t.Error("a dead owner was found")
	}
	if len(s.Check()) == 0 {
		t.Error("the checker does not see the dead owner's entry")
	}
	if _, err := tab.Insert(testID(2), o[0], KindEstablished, 0); !errors.Is(err, ErrOwnerDead) {
		t.Errorf("a dead owner inserts: %v", err)
	}
	if w, err := tab.Insert(testID(1), o[1], KindHandshaking, 0); err != nil || w != o[1] {
		t.Errorf("%v, %v", w, err)
	}
	mustUsage(t, tab, 1, 1)
	mustCheck(t, s)

	// The next process in the slot is somebody else.
	next := Owner{o[0].Slot, o[0].Incarnation + 50}
	s.Directory().Assign(next.Slot, next.Incarnation, 2, 1)
	if _, err := tab.Insert(testID(3), next, KindEstablished, 0); err != nil {
		t.Fatal(err)
	}
	if tab.Remove(testID(3), o[0]) || tab.RemoveAll(o[0]) != 0 {
		t.Error("a dead owner removed its successor's entry")
	}
	if n := tab.RemoveAll(next); n != 1 {
		t.Errorf("%d removed", n)
	}
	mustUsage(t, tab, 1, 1)
}

func TestReclaimFreesAllOfOne(t *testing.T) {
	s, o := segment(t, 4096, 3)
	for i := range 1500 {
		if _, err := s.Table().Insert(testID(i), o[i%3], KindEstablished, 0); err != nil {
			t.Fatal(err)
		}
	}
	s.Directory().MarkDead(1)
	if n := s.Table().Reclaim(o[1]); n != 500 {
		t.Errorf("%d reclaimed", n)
	}
	mustUsage(t, s.Table(), 1000, 0)
	mustCheck(t, s)
	for i := range 1500 {
		if h, ok := s.Table().Lookup(testID(i), 0); ok != (i%3 != 1) || ok && h.Owner != o[i%3] {
			t.Fatalf("%d: %v, %v", i, h, ok)
		}
	}
}

func TestHandshakesHaveABoundedShare(t *testing.T) {
	s, o := segment(t, 4096, 2)
	tab := s.Table()
	established := 0
	for i := range 1500 {
		if _, err := tab.Insert(testID(i), o[0], KindEstablished, 0); err == nil {
			established++
		}
	}
	full := 0
	for i := range 100_000 { // a flood of spoofed Initials
		w, err := tab.Insert(testID(1<<20+i), o[1], KindHandshaking, Epoch(i/1000))
		switch {
		case errors.Is(err, ErrHandshakesFull):
			full++
		case err != nil || w != o[1]:
			t.Fatal(w, err)
		}
		if u := tab.Usage(); u.Handshaking > 4096/HandshakeShare || u.Used != established+u.Handshaking {
			t.Fatalf("after %d: %+v", i, u)
		}
	}
	mustCheck(t, s)
	for i := range 1500 {
		if h, ok := tab.Lookup(testID(i), 0); !ok || h.Owner != o[0] {
			t.Fatalf("established %d was evicted", i)
		}
	}
	// In the flood most real handshakes still get an entry, and finish.
	real := 0
	for i := range 1000 {
		id := testID(1<<30 + i)
		if _, err := tab.Insert(id, o[0], KindHandshaking, 200); err != nil {
			continue
		}
		if err := tab.Establish(id, o[0], 200); err != nil {
			t.Fatal(err)
		}
		real++
		for j := range 10 {
			_, _ = tab.Insert(testID(1<<31+i*10+j), o[1], KindHandshaking, 200)
		}
	}
	if real < 800 {
		t.Errorf("only %d of 1000 handshakes got in, %d of the flood did not", real, full)
	}
	mustCheck(t, s)
}

func TestEstablishedIsNeverEvicted(t *testing.T) {
	s, o := segment(t, 256, 2)
	tab := s.Table()
	mine := make(map[int]bool)
	for i := range 5000 {
		_, err := tab.Insert(testID(i), o[0], KindEstablished, 0)
		switch {
		case err == nil:
			mine[i] = true
		case !errors.Is(err, ErrTableFull):
			t.Fatal(err)
		}
	}
	if u := tab.Usage(); u.Used != u.Capacity || len(mine) != u.Capacity {
		t.Errorf("5000 inserts left %+v", u)
	}
	for i := range 5000 {
		_, err := tab.Insert(testID(10_000+i), o[1], Kind(1+i%2), 60_000)
		if !errors.Is(err, ErrTableFull) {
			t.Fatal(err)
		}
	}
	mustUsage(t, tab, 256, 0)
	for i := range mine {
		if h, ok := tab.Lookup(testID(i), 0); !ok || h.Owner != o[0] {
			t.Fatalf("%d was evicted", i)
		}
	}
	mustCheck(t, s)
}

func TestEstablishedTakesTheOldestHandshake(t *testing.T) {
	s, o := segment(t, 16, 1) // two buckets: every key may be anywhere
	tab := s.Table()
	tab.maxShake = 4
	for i := range 4 {
		if _, err := tab.Insert(testID(i), o[0], KindHandshaking, Epoch(10+(i+2)%4)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 14 { // the last two take handshakes
		if err := tab.Establish(testID(100+i), o[0], 20); err != nil {
			t.Fatal(i, err)
		}
	}
	mustUsage(t, tab, 16, 2)
	for i, want := range []bool{true, true, false, false} { // 2 and 3 were the oldest
		if _, ok := tab.Lookup(testID(i), 20); ok != want {
			t.Errorf("handshake %d is there: %v", i, ok)
		}
	}
	mustCheck(t, s)
}

// Clients choose connection IDs. A table whose buckets follow from the first
// octets would have them all in two buckets.
func TestChosenIDsSpread(t *testing.T) {
	s, o := segment(t, 1<<14, 1)
	tab := s.Table()
	buckets := make(map[uint64]int)
	for i := range 8000 {
		b := make([]byte, 20)
		copy(b, "the same")
		binary.LittleEndian.PutUint32(b[16:], uint32(i))
		id := mustID(b)
		if _, err := tab.Insert(id, o[0], KindEstablished, 0); err != nil {
			t.Fatalf("%d: %v", i, err)
		}
		buckets[tab.Hash(id)&tab.mask]++
	}
	for b, n := range buckets {
		if n > 24 { // mean 4
			t.Errorf("bucket %d is first for %d", b, n)
		}
	}
	mustCheck(t, s)
}

func TestHashAgainstReference(t *testing.T) {
	// SipHash-1-3 of 24 bytes, less the block for the length, in the form of
	// the paper: an array of four words and a message of bytes.
	reference := func(secret [16]byte, msg [24]byte) uint64 {
		k0, k1 := binary.LittleEndian.Uint64(secret[:8]), binary.LittleEndian.Uint64(secret[8:])
		v := [4]uint64{k0 ^ 0x736f6d6570736575, k1 ^ 0x646f72616e646f6d, k0 ^ 0x6c7967656e657261, k1 ^ 0x7465646279746573}
		rotl := func(x uint64, n uint) uint64 { return x<<n | x>>(64-n) }
		round := func() {
			v[0] += v[1]
			v[1] = rotl(v[1], 13)
			v[1] ^= v[0]
			v[0] = rotl(v[0], 32)
			v[2] += v[3]
			v[3] = rotl(v[3], 16)
			v[3] ^= v[2]
			v[0] += v[3]
			v[3] = rotl(v[3], 21)
			v[3] ^= v[0]
			v[2] += v[1]
			v[1] = rotl(v[1], 17)
			v[1] ^= v[2]
			v[2] = rotl(v[2], 32)
		}
		for i := 0; i < len(msg); i += 8 {
			m := binary.LittleEndian.Uint64(msg[i:])
			v[3] ^= m
			round()
			v[0] ^= m
		}
		v[2] ^= 0xff
		for range 3 {
			round()
		}
		return v[0] ^ v[1] ^ v[2] ^ v[3]
	}
	s, _ := segment(t, 16, 0)
	for n := range connid.MaxLen + 1 {
		var msg [24]byte
		msg[0] = byte(n)
		for i := range n {
			msg[1+i] = byte(3*i + n)
		}
		if got, want := s.Table().Hash(mustID(msg[1:1+n])), reference(testSecret, msg); got != want {
			t.Errorf("length %d: %#x, want %#x", n, got, want)
		}
	}
}

func TestCheckSeesDuplicates(t *testing.T) {
	s, o := segment(t, 64, 2)
	tab := s.Table()
	if _, err := tab.Insert(testID(1), o[0], KindEstablished, 0); err != nil {
		t.Fatal(err)
	}
	sp := tab.spot(testID(1))
	b := tab.bucket(sp.b[1])
	for w, x := range []uint64{sp.key.w0, sp.key.w1, sp.key.w2} {
		b.swapKey(5, w, 0, x)
	}
	b.cas(5, 0, stateEstablished<<62|ownerMeta(o[1])|sp.tag)
	if f := s.Check(); len(f) != 1 {
		t.Errorf("faults: %v", f)
	}
}

func TestNoAllocation(t *testing.T) {
	s, o := segment(t, 1024, 1)
	tab := s.Table()
	i := 0
	if n := testing.AllocsPerRun(1000, func() {
		i++
		id := testID(i)
		_, _ = tab.Insert(id, o[0], KindHandshaking, 1)
		_, _ = tab.Lookup(id, 2)
		_, _ = tab.Lookup(testID(-i), 2)
		_ = tab.Establish(id, o[0], 2)
		_ = tab.Remove(id, o[0])
		_ = s.Directory().Alive(o[0])
		s.Counters(1).Add(QueueDelayCounter(5), 1)
		_ = s.Admission().Load().Pick(tab.Hash(id))
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
