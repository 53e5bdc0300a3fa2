package shm

import (
	"math/rand/v2"
	"sync"
	"testing"
)

// After any damage a round of reclaim, sweep and new assignments gives a table
// that works again for keys that are put into it then.
func TestTableRecoversFromDamage(t *testing.T) {
	for seed := range uint64(6) {
		r := rand.New(rand.NewPCG(seed, 3))
		s, o := segment(t, 256, 2)
		from, to := s.at.table/8, s.at.queues/8
		for range 200 {
			s.view.Store64((from+r.IntN(to-from))*8, r.Uint64())
			exercise(s, o[r.IntN(2)])
		}
		// What is left of the damage belongs to nobody, or expires.
		for _, w := range o {
			s.Table().RemoveAll(w)
			s.Directory().MarkDead(w.Slot)
		}
		for i := range s.Table().touched {
			s.Table().touched[i] = ^uint64(0)
		}
		for range 2 {
			sweepAll(s.Table(), 0, Limits{})
		}
		mustUsage(t, s.Table(), 0, 0)
		mustCheck(t, s)
		next := Owner{5, 5000}
		s.Directory().Assign(next.Slot, next.Incarnation, 2, 1)
		for i := range 100 {
			if _, err := s.Table().Insert(testID(i), next, KindEstablished, 0); err != nil {
				t.Fatal(err)
			}
		}
		mustUsage(t, s.Table(), 100, 0)
		mustCheck(t, s)
	}
}

// One scribbles over the table while others use it.
func TestDamageWhileInUse(t *testing.T) {
	s, o := segment(t, 256, 2)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for _, w := range o {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					exercise(s, w)
				}
			}
		})
	}
	r := rand.New(rand.NewPCG(1, 4))
	from, to := s.at.admission/8, s.at.queues/8
	for range 20_000 {
		s.view.Store64((from+r.IntN(to-from))*8, r.Uint64())
	}
	close(stop)
	wg.Wait()
}
