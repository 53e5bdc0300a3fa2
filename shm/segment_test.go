package shm

import (
	"errors"
	"testing"

	"github.com/holdfast-quic/holdfast/internal/mem"
)

func TestGeometry(t *testing.T) {
	g := DefaultGeometry()
	if err := g.Validate(); err != nil {
		t.Fatal(err)
	}
	if g.Slots != 256 || g.TableEntries != 1<<20 || g.Lanes != 32 || g.LaneBytes != 256<<10 {
		t.Errorf("defaults: %+v", g)
	}
	for name, change := range map[string]func(*Geometry){
		"no slots":        func(g *Geometry) { g.Slots = 0 },
		"slots":           func(g *Geometry) { g.Slots = 1025 },
		"few entries":     func(g *Geometry) { g.TableEntries = 8 },
		"entries":         func(g *Geometry) { g.TableEntries = 1 << 29 },
		"power":           func(g *Geometry) { g.TableEntries = 1<<20 + 8 },
		"no lanes":        func(g *Geometry) { g.Lanes = 0 },
		"negative lanes":  func(g *Geometry) { g.Lanes = -1 },
		"lanes":           func(g *Geometry) { g.Lanes = 257 },
		"small lanes":     func(g *Geometry) { g.LaneBytes = 2048 },
		"large lanes":     func(g *Geometry) { g.LaneBytes = 128 << 20 },
		"power of a lane": func(g *Geometry) { g.LaneBytes = 5000 },
	} {
		g := DefaultGeometry()
		change(&g)
		if err := g.Validate(); !errors.Is(err, ErrGeometry) {
			t.Errorf("%s: %v", name, err)
		}
	}
	largest := Geometry{Slots: maxSlots, TableEntries: maxEntries, Lanes: maxLanes, LaneBytes: maxLaneSize}
	if err := largest.Validate(); err != nil || largest.Size() <= 0 {
		t.Errorf("largest geometry: %v, %d bytes", err, largest.Size())
	}
}

func TestRegionsDoNotOverlap(t *testing.T) {
	for _, g := range []Geometry{DefaultGeometry(), small(16), small(1 << 16)} {
		r := g.regions()
		starts := []int{0, r.admission, r.directory, r.counters, r.table, r.buckets, r.queues, r.end}
		for i := 1; i < len(starts); i++ {
			if starts[i] <= starts[i-1] || starts[i]%pageBytes != 0 {
				t.Errorf("%+v: region %d starts at %d after %d", g, i, starts[i], starts[i-1])
			}
		}
		if r.queue%pageBytes != 0 || r.queue < g.Lanes*g.LaneBytes {
			t.Errorf("%+v: queue of %d bytes", g, r.queue)
		}
	}
	if int(NumCounters)*8 > counterRowBytes {
		t.Errorf("%d counters do not fit a row", NumCounters)
	}
}

func TestQueuesAreApart(t *testing.T) {
	s, _ := segment(t, 16, 0)
	for i := range s.Geometry().Slots {
		q := s.Queue(SlotID(i))
		for j := range q {
			if q[j] != 0 {
				t.Fatalf("queue %d, byte %d is %d", i, j, q[j])
			}
			q[j] = byte(i + 1)
		}
	}
	mustCheck(t, s)
	if err := s.PunchQueue(3); err != nil {
		t.Fatal(err)
	}
	if s.Queue(2)[s.at.queue-1] != 3 || s.Queue(3)[0] != 0 || s.Queue(3)[s.at.queue-1] != 0 || s.Queue(4)[0] != 5 {
		t.Error("punched the wrong queue")
	}
}

func TestFormatRefuses(t *testing.T) {
	g := small(16)
	if err := Format(make([]byte, g.Size()-1), g, testSecret); !errors.Is(err, ErrGeometry) {
		t.Errorf("short region: %v", err)
	}
	if err := Format(make([]byte, g.Size()+1)[1:], g, testSecret); !errors.Is(err, mem.ErrAlign) {
		t.Errorf("misaligned region: %v", err)
	}
	if err := Format(nil, Geometry{}, testSecret); !errors.Is(err, ErrGeometry) {
		t.Errorf("no geometry: %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(b []byte, v mem.View) []byte
		want   error
	}{
		"nothing":     {func([]byte, mem.View) []byte { return nil }, ErrNotSegment},
		"a byte":      {func(b []byte, _ mem.View) []byte { return b[:1] }, ErrNotSegment},
		"no magic":    {func(b []byte, v mem.View) []byte { v.Store64(headerMagic, 0); return b }, ErrNotSegment},
		"next major":  {func(b []byte, v mem.View) []byte { v.Store32(headerMajor, ABIMajor+1); return b }, ErrABIVersion},
		"major 0":     {func(b []byte, v mem.View) []byte { v.Store32(headerMajor, 0); return b }, ErrABIVersion},
		"bit of size": {func(b []byte, v mem.View) []byte { v.Store32(headerSlots, 17); return b }, ErrNotSegment},
		"cut":         {func(b []byte, _ mem.View) []byte { return b[:len(b)-pageBytes] }, ErrGeometry},
		"no slots": {func(b []byte, v mem.View) []byte {
			v.Store32(headerSlots, 0)
			v.Store64(headerChecksum, headerSum(b))
			return b
		}, ErrGeometry},
		"vast table": {func(b []byte, v mem.View) []byte {
			v.Store64(headerEntries, 1<<63)
			v.Store64(headerChecksum, headerSum(b))
			return b
		}, ErrGeometry},
		"another table": {func(b []byte, v mem.View) []byte {
			v.Store64(headerEntries, 1<<14)
			v.Store64(headerChecksum, headerSum(b))
			return b
		}, ErrGeometry},
	} {
		b := format(t, small(16))
		v, err := mem.NewView(b)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Open(c.change(b, v)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// A later minor version only uses reserved bytes, which this build ignores.
func TestOpenTakesLaterMinor(t *testing.T) {
	b := format(t, small(16))
	v, err := mem.NewView(b)
	if err != nil {
		t.Fatal(err)
	}
	v.Store32(headerMinor, ABIMinor+7)
	v.Store64(headerChecksum, headerSum(b))
	v.Store64(headerChecksum+8, 42)
	if _, err := Open(b); err != nil {
		t.Error(err)
	}
}

func TestHalfFormattedIsNoSegment(t *testing.T) {
	b := format(t, small(16))
	clear(b[:8]) // its creator died before the last store
	if _, err := Open(b); !errors.Is(err, ErrNotSegment) {
		t.Error(err)
	}
}

func TestCheckSeesHeaderDamage(t *testing.T) {
	for off := range headerChecksum + 8 {
		b := format(t, small(16))
		s, err := Open(b)
		if err != nil {
			t.Fatal(err)
		}
		b[off] ^= 0x10
		if len(s.Check()) == 0 {
			t.Errorf("byte %d: no fault", off)
		}
		if _, err := Open(b); err == nil {
			t.Errorf("byte %d: opened", off)
		}
	}
}

func TestCloseOnPlainBytes(t *testing.T) {
	s, _ := segment(t, 16, 0)
	if s.File() != nil || s.Close() != nil || s.Created().IsZero() {
		t.Error("plain segment")
	}
}
