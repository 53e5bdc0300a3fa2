package shm

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// Many racing inserts of one key by different owners: one wins, all others are
// told who, and the checker finds no second entry. Some of them find their first
// choice taken, so that the racers meet in different entries and buckets.
func TestRacingInsertsHaveOneWinner(t *testing.T) {
	const racers = 4
	s, o := segment(t, 16, racers+1)
	tab := s.Table()
	for round := range 1500 {
		id := testID(round)
		var winners [racers]Owner
		var start, done sync.WaitGroup
		start.Add(1)
		for i := range racers {
			done.Go(func() {
				start.Wait()
				w, err := tab.Insert(id, o[i], Kind(1+round%2), 0)
				if err != nil {
					t.Error(err)
				}
				winners[i] = w
			})
		}
		// Entries that come and go move the racers' choice.
		done.Go(func() {
			start.Wait()
			for j := range 4 {
				noise := testID(1<<20 + j)
				if _, err := tab.Insert(noise, o[racers], KindEstablished, 0); err == nil {
					runtime.Gosched()
					tab.Remove(noise, o[racers])
				}
			}
		})
		start.Done()
		done.Wait()
		for _, w := range winners {
			if w != winners[0] {
				t.Fatalf("round %d: winners %v", round, winners)
			}
		}
		if h, ok := tab.Lookup(id, 0); !ok || h.Owner != winners[0] {
			t.Fatalf("round %d: look-up says %v, %v; the racers %v", round, h, ok, winners[0])
		}
		mustCheck(t, s)
		if !tab.Remove(id, winners[0]) {
			t.Fatalf("round %d: the winner has no entry", round)
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	mustUsage(t, tab, 0, 0)
}

// Two inserts whose steps are taken in every order that a pair of stops allows:
// the one is held at each place while the other runs to its end.
func TestRaceAtEveryStep(t *testing.T) {
	for _, p := range failpoints[:7] {
		for _, full := range []bool{false, true} {
			s, o := segment(t, 16, 3)
			tab := s.Table()
			if full { // make the other one choose another entry than the first
				if _, err := tab.Insert(testID(2), o[2], KindEstablished, 0); err != nil {
					t.Fatal(err)
				}
			}
			other := newTableOf(s) // as another process has it
			var inner Owner
			held := false
			tab.hook = func(at failpoint) {
				if at != p || held {
					return
				}
				held = true
				if full {
					tab.Remove(testID(2), o[2])
				}
				w, err := other.Insert(testID(1), o[1], KindHandshaking, 0)
				if err != nil {
					t.Errorf("%s: %v", p, err)
				}
				inner = w
			}
			outer, err := tab.Insert(testID(1), o[0], KindHandshaking, 0)
			if err != nil || outer != inner || !held {
				t.Errorf("%s: outer %v, %v; inner %v", p, outer, err, inner)
			}
			if h, ok := tab.Lookup(testID(1), 0); !ok || h.Owner != outer {
				t.Errorf("%s: look-up says %v, the racers %v", p, h, outer)
			}
			mustCheck(t, s)
			sweepAll(tab, 0, Limits{})
			mustUsage(t, tab, 1, 1)
		}
	}
}

// newTableOf returns another Table over the same memory.
func newTableOf(s *Segment) *Table {
	var t Table
	t.init(s.view.Sub(s.at.table, s.at.queues-s.at.table), s.header.geometry, s.header.secret, &s.directory)
	return &t
}

// Owners insert, use, establish and remove their own keys while others compete
// for shared ones, a sweeper runs and slots change hands. What a live owner has
// established, it finds.
func TestConcurrentStress(t *testing.T) {
	const workers, keys = 4, 64
	s, _ := segment(t, 2048, 0)
	tab, d := s.Table(), s.Directory()
	var inc atomic.Uint32
	var work, back sync.WaitGroup
	stop := make(chan struct{})
	back.Go(func() {
		for from := 0; ; {
			select {
			case <-stop:
				return
			default:
			}
			from, _ = tab.Sweep(from, 256, 7, Limits{Handshake: 100, Established: 100})
			tab.Usage()
			runtime.Gosched()
		}
	})
	back.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			for i := range 200 {
				if h, ok := tab.Lookup(testID(i), 7); ok && (h.Owner.Slot >= workers || h.Owner.Incarnation == 0) {
					t.Errorf("nobody's: %v", h)
				}
			}
			runtime.Gosched()
		}
	})
	for w := range workers {
		work.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 2))
			for range 12 { // lives
				o := Owner{SlotID(w), Incarnation(inc.Add(1))}
				d.Assign(o.Slot, o.Incarnation, 1, 1)
				for range 40 {
					for k := range keys {
						id := testID(1000 + w*keys + k)
						if _, err := tab.Insert(id, o, KindHandshaking, 7); err != nil && !errors.Is(err, ErrHandshakesFull) {
							t.Error(err)
						}
						if err := tab.Establish(id, o, 7); err != nil {
							t.Error(err)
						}
						if _, err := tab.Insert(testID(r.IntN(200)), o, Kind(1+k%2), 7); err != nil && !errors.Is(err, ErrHandshakesFull) {
							t.Error(err)
						}
						tab.Remove(testID(r.IntN(200)), o)
						if h, ok := tab.Lookup(id, 7); !ok || h.Owner != o || h.Kind != KindEstablished {
							t.Errorf("%v lost its own: %v, %v", o, h, ok)
						}
					}
					for k := range keys {
						if id := testID(1000 + w*keys + k); !tab.Remove(id, o) {
							t.Errorf("%v: nothing to remove", o)
						}
					}
				}
				d.MarkDead(o.Slot)
				tab.Reclaim(o)
			}
		})
	}
	work.Wait()
	close(stop)
	back.Wait()
	mustCheck(t, s)
	sweepAll(tab, 7, Limits{})
	mustUsage(t, tab, 0, 0)
}

func TestEightReclaimersAtOnce(t *testing.T) {
	s, o := segment(t, 4096, 2)
	for round := range 10 {
		dead := Owner{1, Incarnation(1000 + round)}
		s.Directory().Assign(1, dead.Incarnation, 1, 1)
		for i := range 1000 {
			if _, err := s.Table().Insert(testID(i), dead, KindEstablished, 0); err != nil {
				t.Fatal(err)
			}
		}
		s.Directory().MarkDead(1)
		var total atomic.Int64
		var wg sync.WaitGroup
		for range 8 {
			tab := newTableOf(s)
			wg.Go(func() { total.Add(int64(tab.Reclaim(dead))) })
		}
		// The living go on meanwhile.
		wg.Go(func() {
			for i := range 500 {
				if _, err := s.Table().Insert(testID(5000+i), o[0], KindEstablished, 0); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Wait()
		if n := total.Load(); n > 1000 || n < 900 { // the inserter took some
			t.Errorf("%d entries reclaimed of 1000", n)
		}
		mustUsage(t, s.Table(), 500, 0)
		mustCheck(t, s)
		s.Table().RemoveAll(o[0])
	}
}
