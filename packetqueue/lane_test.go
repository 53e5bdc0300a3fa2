package packetqueue

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
)

func TestLeaseTakesEachLaneOnce(t *testing.T) {
	region := newRegion(t, testLanes, testBytes)
	var mu sync.Mutex
	got := map[int]uint64{}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range testLanes {
				token := Token(uint16(g), uint32(i+1))
				p, err := Lease(region, token, uint8(g))
				if err != nil {
					if !errors.Is(err, ErrNoLane) {
						t.Error(err)
					}
					continue
				}
				mu.Lock()
				if other, twice := got[p.index]; twice {
					t.Errorf("lane %d leased to %x and %x", p.index, other, token)
				}
				got[p.index] = token
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(got) != testLanes {
		t.Errorf("%d lanes leased, want %d", len(got), testLanes)
	}
	expectClean(t, region)
}

func TestLeaseRefuses(t *testing.T) {
	region := newRegion(t, 1, testBytes)
	for token, want := range map[uint64]error{0: ErrToken, 1 << 48: ErrToken, 1<<48 - 1: nil} {
		if _, err := Lease(region, token, 0); !errors.Is(err, want) {
			t.Errorf("token %#x: %v, want %v", token, err, want)
		}
	}
	if _, err := Lease(region, 1, 0); !errors.Is(err, ErrNoLane) {
		t.Error("second lease of one lane:", err)
	}
	if _, err := Lease(region, 1, Channels); !errors.Is(err, ErrChannel) {
		t.Error("channel 64:", err)
	}
	if _, err := OpenConsumer(region, Channels); !errors.Is(err, ErrChannel) {
		t.Error("consumer of channel 64:", err)
	}
}

func TestReleasedLaneIsDrainedThenFree(t *testing.T) {
	region := newRegion(t, 1, testBytes)
	p, c := mustLease(t, region, 7, 3), mustOpen(t, region, 3)
	mustPush(t, p, 7, 1, 100)
	mustPush(t, p, 7, 2, 100)
	p.Release()
	p.Release()
	if err := p.Push(&Record{}); !errors.Is(err, ErrClosed) {
		t.Error("push after release:", err)
	}
	if _, err := Lease(region, 8, 3); !errors.Is(err, ErrNoLane) {
		t.Error("a lane that holds records was leased:", err)
	}
	expectClean(t, region)
	if c.Pending() != 2 || Pending(region) != 2 {
		t.Error("pending", c.Pending(), Pending(region))
	}
	expect(t, c, 7, 1)
	expect(t, c, 7, 2)
	if !c.Arm() {
		t.Error("cannot sleep though all is read")
	}
	if w := c.q.owner(0); w.state() != stateFree || w.token() != 0 {
		t.Errorf("owner word %#x after all was read", uint64(w))
	}
	expectClean(t, region)
}

func TestEmptyLaneIsFreeAtRelease(t *testing.T) {
	region := newRegion(t, 1, testBytes)
	for i := range 600 { // lease counts wrap
		p := mustLease(t, region, uint64(i+1), uint8(i%Channels))
		p.Release()
	}
	expectClean(t, region)
}

func TestClosingLaneOfASleepingConsumerIsLeasedAgain(t *testing.T) {
	region := newRegion(t, 1, testBytes)
	p, c := mustLease(t, region, 1, 0), mustOpen(t, region, 0)
	mustPush(t, p, 1, 1, 100)
	expect(t, c, 1, 1)
	p.Release() // the record is not given back yet: closing
	c.Done()
	if c.q.owner(0).state() != stateClosing {
		t.Fatal("lane is not closing")
	}
	other, second := mustOpen(t, region, 5), mustLease(t, region, 2, 5)
	mustPush(t, second, 2, 1, 100)
	expectNothing(t, c)
	if !c.Arm() {
		t.Error("kept awake by a lane of another channel")
	}
	expect(t, other, 2, 1)
	other.Done()
	expectClean(t, region)
}

func TestChannelsDoNotMix(t *testing.T) {
	region := newRegion(t, testLanes, testBytes)
	var consumers [Channels]*Consumer
	for ch := range consumers {
		consumers[ch] = mustOpen(t, region, uint8(ch))
	}
	for i := range 5000 {
		ch := rand.IntN(Channels)
		p := mustLease(t, region, 1, uint8(ch))
		mustPush(t, p, ch, i, 64)
		p.Release()
		expectNothing(t, consumers[(ch+1)%Channels])
		expect(t, consumers[ch], ch, i)
		if !consumers[ch].Arm() {
			t.Fatal("cannot sleep")
		}
		consumers[ch].Disarm()
	}
	expectClean(t, region)
}

// A lane of many may not starve the others.
func TestLanesTakeTurns(t *testing.T) {
	region := newRegion(t, 2, 256<<10)
	busy, quiet, c := mustLease(t, region, 1, 0), mustLease(t, region, 2, 0), mustOpen(t, region, 0)
	n := 0
	fill := func() {
		var r Record
		for numbered(&r, 1, n, 1200); busy.Push(&r) == nil; numbered(&r, 1, n, 1200) {
			n++
		}
	}
	fill()
	mustPush(t, quiet, 2, 1, 64)
	for i := range 200 {
		var r Record
		if !c.Next(&r) {
			t.Fatal("nothing to read")
		}
		if r.Target == 2 {
			t.Logf("after %d records of the busy lane", i)
			return
		}
		fill()
	}
	t.Error("200 records of the busy lane, none of the quiet one")
}

func TestFullLaneDropsAndRecovers(t *testing.T) {
	region := newRegion(t, 2, testBytes)
	p, other, c := mustLease(t, region, 1, 0), mustLease(t, region, 2, 0), mustOpen(t, region, 0)
	sent, dropped := 0, 0
	for range 1000 {
		var r Record
		numbered(&r, 1, sent, 1000)
		switch err := p.Push(&r); {
		case err == nil:
			sent++
		case errors.Is(err, ErrFull):
			dropped++
		default:
			t.Fatal(err)
		}
	}
	if sent != testBytes/int(recordBytes(1000)) || sent+dropped != 1000 || c.Pending() != sent {
		t.Errorf("%d sent, %d dropped, %d pending", sent, dropped, c.Pending())
	}
	mustPush(t, other, 2, 0, 1000) // unaffected
	for i := range sent {
		expect(t, c, 1, i)
	}
	expect(t, c, 2, 0)
	c.Done()
	mustPush(t, p, 1, sent, 1000)
	expect(t, c, 1, sent)
	if c.Bad() != 0 {
		t.Error("bad:", c.Bad())
	}
	expectClean(t, region)
}

// All lanes of the largest geometry are served and may sleep.
func TestEveryLane(t *testing.T) {
	region := newRegion(t, MaxLanes, MinLaneBytes)
	c := mustOpen(t, region, 1)
	var ps [MaxLanes]*Producer
	for i := range ps {
		ps[i] = mustLease(t, region, uint64(i+1), 1)
	}
	for range 3 {
		if !c.Arm() {
			t.Fatal("cannot sleep")
		}
		for i, p := range ps {
			mustPush(t, p, i, 1, 64)
			if p.NeedRing() != (i == 0) {
				t.Errorf("producer %d: rings, or not, wrongly", i)
			}
		}
		seen := map[uint32]bool{}
		for r := (Record{}); c.Next(&r); {
			seen[r.Target] = true
		}
		if len(seen) != MaxLanes {
			t.Fatalf("%d of %d lanes read", len(seen), MaxLanes)
		}
	}
	expectClean(t, region)
}
