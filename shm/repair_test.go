package shm

import (
	"math/rand/v2"
	"testing"
)

// Whatever happens to the words of the supervisor, it puts them right again, and
// a process is never taken for dead in between.
func TestRepairPutsTheSupervisorsWordsBack(t *testing.T) {
	s, owners := segment(t, 64, 3)
	s.Admission().Store(Choice{Current: 7})
	s.Directory().SetServing(owners[1].Slot, true)
	s.Directory().MarkDead(owners[2].Slot)
	var before [3]Record
	for i, o := range owners {
		before[i] = s.Directory().Record(o.Slot)
	}
	if n := s.Repair(); n != 0 {
		t.Errorf("%d words repaired where nothing was damaged", n)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		o := owners[r.IntN(len(owners))]
		at := s.at.directory + s.directory.at(o.Slot) + r.IntN(4)*8
		switch r.IntN(8) {
		case 0:
			at = s.at.admission
		case 1:
			at = r.IntN(len(s.page)) * 8
		}
		was := s.view.Load64(at)
		noise := r.Uint64() >> r.IntN(64) << r.IntN(64)
		if noise == 0 {
			continue
		}
		version := s.Directory().Version()
		s.view.Store64(at, was^noise)
		if before[o.Slot].Alive && !s.Directory().Alive(o) && !s.Directory().Damaged(uint16(o.Slot)) {
			t.Fatalf("%v passes for dead: %#x instead of %#x", o, was^noise, was)
		}
		if n := s.Repair(); n != 1 {
			t.Fatalf("%d words repaired", n)
		}
		if at >= s.at.directory && s.Directory().Version() == version {
			t.Fatal("nobody is told to look at the directory again")
		}
	}
	for i, o := range owners {
		if now := s.Directory().Record(o.Slot); now != before[i] {
			t.Errorf("record %+v, was %+v", now, before[i])
		}
	}
	if c := s.Admission().Load(); c != (Choice{Current: 7}) {
		t.Errorf("admission %+v", c)
	}
	mustCheck(t, s)
}
