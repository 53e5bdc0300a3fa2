package shm

import (
	"strings"
	"testing"
)

// Each kind of fault is seen and named.
func TestCheckNamesFaults(t *testing.T) {
	record := func(s *Segment, slot SlotID) int { return s.at.directory + s.directory.at(slot) }
	for want, damage := range map[string]func(s *Segment, o Owner){
		"alive without an incarnation": func(s *Segment, _ Owner) { s.view.Store64(record(s, 9), seal(identityAlive)) },
		"serving but dead":             func(s *Segment, _ Owner) { s.view.Store64(record(s, 9), seal(identityServing|7)) },
		"identity is damaged":          func(s *Segment, _ Owner) { s.view.Store64(record(s, 9), 7) },
		"phase(9)":                     func(s *Segment, o Owner) { s.view.Store64(record(s, o.Slot)+recordPhase, 9) },
		"alive in generation 0":        func(s *Segment, o Owner) { s.view.Store64(record(s, o.Slot)+recordGeneration, 0) },
		"in slots 0 and 9":             func(s *Segment, o Owner) { s.view.Store64(record(s, 9), seal(uint64(o.Incarnation))) },
		"without a current one":        func(s *Segment, _ Owner) { s.view.Store64(s.at.admission, 5<<16) },
		"is dead":                      func(s *Segment, o Owner) { s.directory.MarkDead(o.Slot) },
		"key is no connection ID": func(s *Segment, o Owner) {
			b, i := entryOf(s, 1)
			b.swapKey(i, 0, b.key(i).w0, 200)
		},
		"does not belong here": func(s *Segment, o Owner) {
			b, i := entryOf(s, 1)
			b.swapKey(i, 1, b.key(i).w1, 0)
		},
		"unfinished handshakes": func(s *Segment, _ Owner) { s.table.maxShake = 0 },
	} {
		s, o := segment(t, 64, 1)
		for i, k := range []Kind{KindHandshaking, KindEstablished} {
			if _, err := s.Table().Insert(testID(0x0102030405060700+i), o[0], k, 0); err != nil {
				t.Fatal(err)
			}
		}
		mustCheck(t, s)
		damage(s, o[0])
		found := false
		for _, err := range s.Check() {
			found = found || strings.Contains(err.Error(), want)
		}
		if !found {
			t.Errorf("%q is not among the faults %v", want, s.Check())
		}
	}
}

// entryOf returns the place of the n-th key of the test.
func entryOf(s *Segment, n int) (*bucket, uint) {
	sp := s.table.spot(testID(0x0102030405060700 + n))
	b, i, _, _ := s.table.find(&sp, meta.committed)
	return b, i
}

func TestCheckListsABoundedNumber(t *testing.T) {
	s, o := segment(t, 4096, 1)
	for i := range 400 {
		if _, err := s.Table().Insert(testID(i), o[0], KindEstablished, 0); err != nil {
			t.Fatal(err)
		}
	}
	s.Directory().MarkDead(o[0].Slot)
	if n := len(s.Check()); n != maxFaults {
		t.Errorf("%d faults", n)
	}
}

func TestNames(t *testing.T) {
	if s := (Owner{3, 7}).String(); s != "3#7" {
		t.Error(s)
	}
	if PhaseDraining.String() != "draining" || Phase(77).String() != "phase(77)" {
		t.Error(PhaseDraining, Phase(77))
	}
}
