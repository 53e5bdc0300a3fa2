package shm

import (
	"encoding/binary"
	"testing"

	"github.com/holdfast-quic/holdfast/connid"
)

// small is a geometry that a plain slice has room for.
func small(entries int) Geometry {
	return Geometry{Slots: 16, TableEntries: entries, Lanes: 1, LaneBytes: pageBytes}
}

// testSecret keys every table of the tests, so that a failure repeats.
var testSecret = [16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}

func format(tb testing.TB, g Geometry) []byte {
	tb.Helper()
	region := make([]byte, g.Size())
	if err := Format(region, g, testSecret); err != nil {
		tb.Fatal(err)
	}
	return region
}

// segment returns a segment on a plain slice, with n live owners in slots 0 to
// n-1.
func segment(tb testing.TB, entries, n int) (*Segment, []Owner) {
	tb.Helper()
	s, err := Open(format(tb, small(entries)))
	if err != nil {
		tb.Fatal(err)
	}
	return s, assign(s, n)
}

func assign(s *Segment, n int) []Owner {
	owners := make([]Owner, n)
	for i := range owners {
		owners[i] = Owner{Slot: SlotID(i), Incarnation: Incarnation(100 + i)}
		s.Directory().Assign(owners[i].Slot, owners[i].Incarnation, 1, 1)
	}
	return owners
}

// testID returns the i-th of a series of different 17-octet connection IDs.
func testID(i int) connid.ID {
	var b [17]byte
	binary.BigEndian.PutUint64(b[9:], uint64(i))
	return mustID(b[:])
}

func mustID(b []byte) connid.ID {
	id, err := connid.FromBytes(b)
	if err != nil {
		panic(err)
	}
	return id
}

// mustCheck fails the test for every fault of the segment.
func mustCheck(tb testing.TB, s *Segment) {
	tb.Helper()
	for _, err := range s.Check() {
		tb.Error(err)
	}
}

// sweepAll runs one round of the sweep and returns how many entries it freed.
func sweepAll(t *Table, now Epoch, l Limits) int {
	freed := 0
	for from := 0; ; {
		next, n := t.Sweep(from, 100, now, l)
		freed += n
		if next == 0 {
			return freed
		}
		from = next
	}
}

// mustUsage fails the test unless the counts are exactly these.
func mustUsage(tb testing.TB, t *Table, used, handshaking int) {
	tb.Helper()
	if u := t.Usage(); u.Used != used || u.Handshaking != handshaking {
		tb.Errorf("usage is %+v, want %d used, %d handshaking", u, used, handshaking)
	}
}
