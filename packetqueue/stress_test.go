package packetqueue

import (
	"errors"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// wakeUps is how often the lost wake-up tests let the consumer sleep at least.
// HOLDFAST_QUEUE_WAKEUPS=10000000 is the long run.
func wakeUps(tb testing.TB, standard int) int {
	tb.Helper()
	if testing.Short() {
		standard /= 10
	}
	if s := os.Getenv("HOLDFAST_QUEUE_WAKEUPS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			tb.Fatal(err)
		}
		return n
	}
	return standard
}

// bell stands for the doorbell: a ring is kept until it is heard.
type bell chan struct{}

func (b bell) ring() {
	select {
	case b <- struct{}{}:
	default:
	}
}

// hear waits for a ring, and says whether one came in time.
func (b bell) hear(limit *time.Timer) bool {
	limit.Reset(20 * time.Second)
	select {
	case <-b:
		return true
	case <-limit.C:
		return false
	}
}

// TestStress runs producers that come and go against one consumer that sleeps
// whenever it can, all in one address space, for the race detector.
func TestStress(t *testing.T) {
	const producers, leases = 3, 40
	perLease := 500
	if testing.Short() {
		perLease = 50
	}
	region := newRegion(t, 4, testBytes)
	rings := make(bell, 1)
	var sent [producers]int
	var full, running atomic.Int64
	var wg sync.WaitGroup
	running.Store(producers)
	for id := range producers {
		wg.Go(func() {
			defer rings.ring()
			defer running.Add(-1)
			var r Record
			for lease := range leases {
				p, err := Lease(region, Token(uint16(id), uint32(lease+1)), 2)
				for errors.Is(err, ErrNoLane) {
					runtime.Gosched()
					p, err = Lease(region, Token(uint16(id), uint32(lease+1)), 2)
				}
				if err != nil {
					t.Error(err)
					return
				}
				for range perLease {
					numbered(&r, id, sent[id], rand.IntN(3000))
					err := p.Push(&r)
					for errors.Is(err, ErrFull) {
						full.Add(1)
						runtime.Gosched()
						err = p.Push(&r)
					}
					if err != nil {
						t.Error(err)
						return
					}
					sent[id]++
					if p.NeedRing() {
						rings.ring()
					}
				}
				p.Release()
			}
		})
	}
	c := mustOpen(t, region, 2)
	var next [producers]int
	limit := time.NewTimer(time.Hour)
	sleeps := 0
	read := func() {
		for r := (Record{}); c.Next(&r); {
			id, number, err := numberOf(&r)
			// A lane that was handed back may be read after the next one of the
			// same producer: order holds within a lease only.
			if err != nil || id >= producers {
				t.Fatal(id, number, err)
			}
			next[id]++
		}
	}
	for read(); running.Load() > 0; read() {
		if c.Arm() {
			sleeps++
			if !rings.hear(limit) {
				t.Fatal("slept through a push")
			}
			c.Disarm()
		}
	}
	wg.Wait()
	for read(); !c.Arm(); {
		read()
	}
	if next != sent || c.Bad() != 0 {
		t.Errorf("sent %v, read %v, %d bad", sent, next, c.Bad())
	}
	expectClean(t, region)
	t.Logf("%d records, full %d times, slept %d times", sent[0]*producers, full.Load(), sleeps)
}

// TestNoLostWakeUp lets two producers push single records to a consumer that
// sleeps after each. Record.Pushed stays zero, so the producers never ring
// unasked, and one lost wake-up is the end.
func TestNoLostWakeUp(t *testing.T) {
	const producers = 2
	region := newRegion(t, 4, testBytes)
	rings := make(bell, 1)
	total := wakeUps(t, 300_000)
	var stop atomic.Bool
	var wg sync.WaitGroup
	for id := range producers {
		p := mustLease(t, region, uint64(id+1), 0)
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(id), 1))
			r := Record{Payload: make([]byte, 16)}
			for !stop.Load() {
				for range rnd.IntN(4) {
					_ = p.Push(&r)
				}
				if p.NeedRing() {
					rings.ring()
				}
				if rnd.IntN(8) == 0 {
					runtime.Gosched()
				}
				for range rnd.IntN(200) {
					_ = stop.Load()
				}
			}
		})
	}
	c := mustOpen(t, region, 0)
	limit := time.NewTimer(time.Hour)
	for sleeps, deadline := 0, time.Now().Add(2*time.Second); sleeps < total; {
		for r := (Record{}); c.Next(&r); {
			continue
		}
		if !c.Arm() {
			continue
		}
		sleeps++
		if !rings.hear(limit) {
			t.Fatalf("asleep with %d records waiting, after %d sleeps", c.Pending(), sleeps)
		}
		c.Disarm()
		if sleeps%1024 == 0 && os.Getenv("HOLDFAST_QUEUE_WAKEUPS") == "" && time.Now().After(deadline) {
			t.Logf("%d sleeps in the time there is", sleeps)
			break
		}
	}
	stop.Store(true)
	wg.Wait()
}
