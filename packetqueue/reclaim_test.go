package packetqueue

import (
	"errors"
	"fmt"
	"sync"
	"testing"
)

var stepNames = map[step]string{
	stepLeased: "leased", stepPadding: "padding", stepFrame: "frame", stepHeader: "header", stepPayload: "payload",
	stepCommitted: "committed", stepMarked: "marked", stepRingClaimed: "ring claimed", stepClosing: "closing",
	stepHeld: "held", stepFenced: "fenced", stepEmptied: "emptied", stepCleared: "cleared",
}

type died step

// dieAt returns a failpoint that ends the goroutine's work at s, the nth time,
// and a function that runs f and says whether it did.
func dieAt(s step, nth int) (failpoint, func(f func()) bool) {
	hook := func(at step) {
		if at == s {
			if nth--; nth <= 0 {
				panic(died(at))
			}
		}
	}
	run := func(f func()) (dead bool) {
		defer func() {
			switch r := recover().(type) {
			case nil:
			case died:
				dead = true
			default:
				panic(r)
			}
		}()
		f()
		return false
	}
	return hook, run
}

func TestReleaseDead(t *testing.T) {
	region := newRegion(t, 4, testBytes)
	c := mustOpen(t, region, 0)
	dead, alive := Token(1, 1), Token(2, 2)
	empty, full, other := mustLease(t, region, dead, 0), mustLease(t, region, dead, 0), mustLease(t, region, alive, 0)
	mustPush(t, full, 1, 1, 100)
	if n := ReleaseDead(region, dead); n != 2 {
		t.Errorf("%d leases ended, want 2", n)
	}
	if ReleaseDead(region, dead) > 1 || ReleaseDead(region, 99) != 0 {
		t.Error("ended what was not there")
	}
	expectClean(t, region)
	mustPush(t, other, 2, 1, 100)
	for _, p := range []*Producer{empty, full} {
		if err := p.Push(&Record{}); !errors.Is(err, ErrClosed) {
			t.Error("push of the dead:", err)
		}
	}
	expect(t, c, 1, 1)
	expect(t, c, 2, 1)
	if !c.Arm() {
		t.Error("cannot sleep")
	}
	expectClean(t, region)
	for range 3 {
		mustLease(t, region, alive, 0)
	}
}

func TestReleaseStaleFreesWhatMakesNoSense(t *testing.T) {
	region := newRegion(t, 2, testBytes)
	q, _ := open(region)
	q.control(0).Store64(laneOwner, ^uint64(0))
	q.control(1).Store64(laneOwner, 0xdeadbeef_0000_0000|uint64(stateLeased))
	if _, err := Lease(region, 1, 0); !errors.Is(err, ErrNoLane) {
		t.Fatal(err)
	}
	if n := ReleaseStale(region, func(token uint64) bool { return token == 1 }); n != 1 {
		t.Error("ended", n)
	}
	mustLease(t, region, 1, 0)
	mustLease(t, region, 1, 0)
	expectClean(t, region)
}

func TestReset(t *testing.T) {
	region := newRegion(t, 4, testBytes)
	p, c := mustLease(t, region, 1, 0), mustOpen(t, region, 0)
	train := Record{Payload: make([]byte, 5000), Segment: 1000}
	if err := p.Push(&train); err != nil {
		t.Fatal(err)
	}
	mustPush(t, p, 1, 1, 100)
	expect0 := Record{}
	if !c.Next(&expect0) {
		t.Fatal("nothing")
	}
	c.Done()
	mustPush(t, p, 1, 2, 100)
	c.block.Store64(chanArmed, 1)
	if n := Reset(region); n != 2 {
		t.Errorf("%d packets dropped, want 2", n)
	}
	if p.NeedRing() || Pending(region) != 0 {
		t.Error("something is left")
	}
	expectClean(t, region)
	if err := p.Push(&train); !errors.Is(err, ErrClosed) {
		t.Error("push after reset:", err)
	}
	c = mustOpen(t, region, 0)
	expectNothing(t, c)
	if !c.Arm() {
		t.Error("the next consumer cannot sleep")
	}
	q := mustLease(t, region, 1, 0)
	mustPush(t, q, 1, 3, 100)
	expect(t, c, 1, 3)
	if Reset(newRegion(t, 1, 4096)) != 0 {
		t.Error("packets in an empty queue")
	}
	trains := newRegion(t, 1, testBytes)
	if err := mustLease(t, trains, 1, 0).Push(&train); err != nil || Pending(trains) != 5 || Reset(trains) != 5 {
		t.Error("a train of five counts as", Pending(trains))
	}
}

// A producer that slept from before a reset until after the lane's next lease
// cannot publish into it.
func TestLateCommitIsRefused(t *testing.T) {
	for _, renew := range []func(region []byte) error{
		func(region []byte) error { Reset(region); return nil },
		func(region []byte) error { return Format(region, 1, testBytes) },
	} {
		region := newRegion(t, 1, testBytes)
		var next *Producer
		var hook failpoint = func(s step) {
			if s == stepPayload {
				if err := renew(region); err != nil {
					t.Fatal(err)
				}
				next = mustLease(t, region, 2, 0)
				mustPush(t, next, 2, 1, 4000)
			}
		}
		stale, err := lease(region, 1, 0, hook)
		if err != nil {
			t.Fatal(err)
		}
		var r Record
		numbered(&r, 1, 1, 100)
		if err := stale.Push(&r); !errors.Is(err, ErrClosed) {
			t.Error("late commit:", err)
		}
		mustPush(t, next, 2, 2, 4000)
		c := mustOpen(t, region, 0)
		expect(t, c, 2, 1)
		expect(t, c, 2, 2)
		expectNothing(t, c)
		expectClean(t, region)
	}
}

// A supervisor may die at any step of a reset; its successor does it again.
func TestResetCutShort(t *testing.T) {
	for _, s := range []step{stepHeld, stepFenced, stepEmptied, stepCleared} {
		for nth := 1; nth <= 3; nth++ {
			t.Run(fmt.Sprintf("%s %d", stepNames[s], nth), func(t *testing.T) {
				region := newRegion(t, 3, testBytes)
				p := mustLease(t, region, 1, 0)
				mustPush(t, p, 1, 1, 100)
				hook, run := dieAt(s, nth)
				if !run(func() { reset(region, hook) }) && s != stepCleared {
					t.Fatal("the step was not reached")
				}
				Reset(region)
				expectClean(t, region)
				if err := p.Push(&Record{}); !errors.Is(err, ErrClosed) {
					t.Error("push after reset:", err)
				}
				for i := range 3 {
					mustPush(t, mustLease(t, region, uint64(i+1), 0), i, 7, 64)
				}
				c := mustOpen(t, region, 0)
				for i := range 3 {
					expect(t, c, i, 7)
				}
				if c.Bad() != 0 {
					t.Error("bad:", c.Bad())
				}
			})
		}
	}
}

// Recoverers of one queue do not disturb each other, and count each packet once.
func TestRecoverersAtOnce(t *testing.T) {
	for range 200 {
		region := newRegion(t, 4, testBytes)
		const packets = 12
		for i := range 3 {
			p := mustLease(t, region, uint64(i+1), 0)
			for j := range packets / 3 {
				mustPush(t, p, i, j, 64)
			}
		}
		var mu sync.Mutex
		dropped, ended := 0, 0
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				e := ReleaseDead(region, 1)
				d := Reset(region)
				mu.Lock()
				dropped, ended = dropped+d, ended+e
				mu.Unlock()
			})
		}
		wg.Wait()
		if dropped != packets {
			t.Fatalf("%d packets counted, %d were there", dropped, packets)
		}
		Reset(region)
		expectClean(t, region)
	}
}

// The consumer may die at any moment: what it has not given back is dropped by
// the reset and counted.
func TestConsumerDies(t *testing.T) {
	region := newRegion(t, 2, testBytes)
	p, c := mustLease(t, region, 1, 0), mustOpen(t, region, 0)
	for i := range 5 {
		mustPush(t, p, 1, i, 64)
	}
	expect(t, c, 1, 0)
	c.Done()
	expect(t, c, 1, 1) // read, not given back
	if n := Reset(region); n != 4 {
		t.Errorf("%d dropped, want 4", n)
	}
	expectClean(t, region)
}
