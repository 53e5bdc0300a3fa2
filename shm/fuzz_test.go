package shm

import (
	"encoding/binary"
	"testing"
)

// FuzzOpen damages the header at will. Open must refuse it or give a segment
// whose sizes are those of the bytes it lies in.
func FuzzOpen(f *testing.F) {
	g := small(16)
	good := format(f, g)
	f.Add([]byte{}, false)
	f.Add(good[:headerChecksum+8], false)
	f.Add(good[:headerChecksum+8], true)
	f.Fuzz(func(t *testing.T, head []byte, seal bool) {
		b := make([]byte, len(good))
		copy(b, head[:min(len(head), headerBytes)])
		if seal { // get past the checksum to what lies behind it
			binary.NativeEndian.PutUint64(b[headerMagic:], magic)
			binary.NativeEndian.PutUint32(b[headerMajor:], ABIMajor)
			binary.NativeEndian.PutUint64(b[headerChecksum:], headerSum(b))
		}
		s, err := Open(b)
		if err != nil {
			return
		}
		if s.Geometry().Size() != int64(len(b)) {
			t.Fatalf("opened with %+v", s.Geometry())
		}
		exercise(s, assign(s, 1)[0])
	})
}

// FuzzTable damages everything behind the header: a script of positions and
// words, between which the segment is used. Nothing may panic or run away.
func FuzzTable(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte("a script of positions and of the words that are written there, again and again"))
	g := small(64)
	clean := format(f, g)
	words := g.regions().queues / 8
	f.Fuzz(func(t *testing.T, script []byte) {
		b := make([]byte, len(clean))
		copy(b, clean)
		s, err := Open(b)
		if err != nil {
			t.Fatal(err)
		}
		o := assign(s, 2)
		for len(script) >= 10 {
			at := int(binary.LittleEndian.Uint16(script)) % words
			s.view.Store64(at*8, binary.LittleEndian.Uint64(script[2:]))
			script = script[10:]
			exercise(s, o[len(script)&1])
		}
		exercise(s, o[0])
	})
}

// exercise calls everything that reads what others may have damaged.
func exercise(s *Segment, o Owner) {
	t, d := s.Table(), s.Directory()
	for i := range 24 {
		id, now := testID(i), Epoch(i*3000)
		_, _ = t.Lookup(id, now)
		_, _ = t.Insert(id, o, Kind(1+i%2), now)
		if i%3 == 0 {
			_ = t.Establish(id, o, now)
		}
		if i%5 == 0 {
			t.Remove(id, o)
		}
	}
	t.Sweep(0, t.entries, 7, Limits{Handshake: 5, Established: 9})
	t.Usage()
	for i := range s.Geometry().Slots {
		d.Record(SlotID(i))
		d.AliveRoute(uint16(i), 100)
		s.Counters(SlotID(i)).Add(PacketsReceived, 1)
	}
	d.Alive(o)
	d.Version()
	_ = s.Admission().Load().Pick(1 << 63)
	s.Totals()
	s.Check()
	t.RemoveAll(o)
}
