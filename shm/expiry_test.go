package shm

import "testing"

func TestExpiry(t *testing.T) {
	s, o := segment(t, 64, 2)
	tab := s.Table()
	limits := Limits{Handshake: 10, Established: 60}
	for i, k := range []Kind{KindHandshaking, KindEstablished} {
		if _, err := tab.Insert(testID(i), o[0], k, 100); err != nil {
			t.Fatal(err)
		}
	}
	if n := sweepAll(tab, 110, limits); n != 0 {
		t.Errorf("%d expired on their limit", n)
	}
	if n := sweepAll(tab, 111, limits); n != 1 {
		t.Errorf("%d expired, want the handshake", n)
	}
	mustUsage(t, tab, 1, 0)
	if _, ok := tab.Lookup(testID(1), 150); !ok { // refreshes
		t.Error("lost")
	}
	if n := sweepAll(tab, 210, limits); n != 0 {
		t.Error("expired although it was used")
	}
	// Inserters know the limits: one may take over what is expired.
	if w, err := tab.Insert(testID(1), o[1], KindEstablished, 210); err != nil || w != o[0] {
		t.Errorf("not expired: %v, %v", w, err)
	}
	if w, err := tab.Insert(testID(1), o[1], KindEstablished, 211); err != nil || w != o[1] {
		t.Errorf("expired: %v, %v", w, err)
	}
	mustUsage(t, tab, 1, 0)
	mustCheck(t, s)
	if n := sweepAll(tab, 60_000, Limits{}); n != 0 {
		t.Error("expired without a limit")
	}
}

// The epoch has 16 bits: with a sweep now and then no age is ever mistaken, over
// several turns of the clock.
func TestEpochComesRound(t *testing.T) {
	s, o := segment(t, 64, 1)
	tab := s.Table()
	limits := Limits{Handshake: 10, Established: 3600}
	const step = 600
	for now := 0; now < 5<<16; now += step {
		e := EpochAt(int64(now) * 1e9)
		if e != Epoch(now&0xffff) {
			t.Fatalf("epoch of %d s is %d", now, e)
		}
		if _, err := tab.Insert(testID(now), o[0], KindEstablished, e); err != nil {
			t.Fatal(err)
		}
		if _, err := tab.Insert(testID(-1), o[0], KindEstablished, e); err != nil {
			t.Fatal(err)
		}
		sweepAll(tab, e, limits)
		for age := 0; age <= 5*3600 && age <= now; age += step {
			// Look without Lookup, which would refresh.
			sp := tab.spot(testID(now - age))
			if _, _, _, ok := tab.find(&sp, meta.committed); ok != (age <= 3600) {
				t.Fatalf("at %d s an entry of age %d is there: %v", now, age, ok)
			}
		}
		if _, ok := tab.Lookup(testID(-1), e); !ok {
			t.Fatalf("at %d s the used entry is gone", now)
		}
	}
	mustCheck(t, s)
}

func TestAge(t *testing.T) {
	for _, c := range []struct {
		e, now Epoch
		age    uint16
	}{
		{5, 5, 0}, {5, 6, 1}, {6, 5, 0}, {65535, 0, 1}, {0, 65535, 0}, {0, maxAge, maxAge}, {0, maxAge + 1, 0}, {10, 9, 0},
	} {
		if a := c.e.age(c.now); a != c.age {
			t.Errorf("age of %d at %d is %d, want %d", c.e, c.now, a, c.age)
		}
	}
}

func TestLookupMovesTheEpochOnlyForward(t *testing.T) {
	s, o := segment(t, 64, 1)
	tab := s.Table()
	if _, err := tab.Insert(testID(1), o[0], KindEstablished, 100); err != nil {
		t.Fatal(err)
	}
	sp := tab.spot(testID(1))
	for _, step := range []struct{ now, want Epoch }{{100, 100}, {99, 100}, {101, 101}, {100, 101}, {60_000, 60_000}, {3, 3}} {
		if _, ok := tab.Lookup(testID(1), step.now); !ok {
			t.Fatal("lost")
		}
		if _, _, m, _ := tab.find(&sp, meta.committed); m.epoch() != step.want {
			t.Errorf("after a look-up at %d the epoch is %d", step.now, m.epoch())
		}
	}
}
