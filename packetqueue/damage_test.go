package packetqueue

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// laneStart makes the lane's cursors start at offset 0, so that a test knows
// where its records lie.
func laneStart(t *testing.T, region []byte) {
	t.Helper()
	q, err := open(region)
	if err != nil {
		t.Fatal(err)
	}
	for i := range q.lanes {
		q.control(i).Store64(laneTail, 1<<20)
		q.control(i).Store64(laneHead, 1<<20)
	}
}

// TestDamagedFrames writes a frame over the second of three records.
func TestDamagedFrames(t *testing.T) {
	const size = 64
	good := packetFrame(&Record{Payload: make([]byte, size)}, 2)
	for name, x := range map[string]struct {
		frame frame
		reads int // records that still arrive
	}{
		"as it was":            {good, 3},
		"zero":                 {0, 1},
		"unknown kind":         {good ^ 4<<frameKind, 1},
		"other channel":        {good ^ 1<<frameChannel, 1},
		"longer than the rest": {good + 2*size + recordHeader, 1},
		"longer than the lane": {good | 0xffff, 1},
		"padding to the end":   {paddingFrame, 1},
		"ECN":                  {good | 4<<frameECN, 2},
		"reserved":             {good | 1<<frameReserved, 2},
		"segment":              {good | (size+1)<<frameSegment, 2},
	} {
		region := newRegion(t, 2, MinLaneBytes)
		laneStart(t, region)
		p, other, c := mustLease(t, region, 1, 2), mustLease(t, region, 2, 2), mustOpen(t, region, 2)
		for i := range 3 {
			mustPush(t, p, 1, i, size)
		}
		mustPush(t, other, 2, 5, size)
		p.data.Store64(int(recordBytes(size)), uint64(x.frame))
		reads := 0
		for r := (Record{}); c.Next(&r); {
			if r.Target == 1 {
				reads++
			}
		}
		if reads != x.reads || (c.Bad() == 1) != (x.reads < 3) {
			t.Errorf("%s: %d records arrive, want %d; %d bad", name, reads, x.reads, c.Bad())
		}
		mustPush(t, p, 1, 9, size)
		expect(t, c, 1, 9)
		if !c.Arm() {
			t.Errorf("%s: cannot sleep", name)
		}
		expectClean(t, region)
	}
}

// Padding at offset 0 would cover the whole lane.
func TestPaddingAtTheStartIsBad(t *testing.T) {
	region := newRegion(t, 1, MinLaneBytes)
	laneStart(t, region)
	p, c := mustLease(t, region, 1, 0), mustOpen(t, region, 0)
	mustPush(t, p, 1, 1, 64)
	paddingFrame.put(p.data.Bytes(0, 8))
	expectNothing(t, c)
	if c.Bad() != 1 || !c.Arm() {
		t.Error("bad:", c.Bad())
	}
}

func TestFaultsOfOneNextAreBounded(t *testing.T) {
	region := newRegion(t, 1, 256<<10)
	laneStart(t, region)
	p, c := mustLease(t, region, 1, 0), mustOpen(t, region, 0)
	n := 0
	for r := (Record{Payload: make([]byte, 8)}); p.Push(&r) == nil; n++ {
		f := packetFrame(&r, 0) | 1<<frameReserved
		p.data.Store64(n*int(recordBytes(8)), uint64(f))
	}
	for calls := 1; c.Bad() < uint64(n); calls++ {
		before := c.Bad()
		expectNothing(t, c)
		if c.Bad()-before > maxFaults || c.Bad() == before || c.Arm() != (c.Bad() == uint64(n)) {
			t.Fatalf("call %d: %d of %d bad after %d", calls, c.Bad(), n, before)
		}
		c.Disarm()
	}
}

func TestDamagedHeadIsWrittenAgain(t *testing.T) {
	region := newRegion(t, 1, MinLaneBytes)
	p, c := mustLease(t, region, 1, 0), mustOpen(t, region, 0)
	full := func() (n int) {
		for r := (Record{Payload: make([]byte, 500)}); p.Push(&r) == nil; n++ {
			continue
		}
		for r := (Record{}); c.Next(&r); {
			continue
		}
		c.Done()
		return n
	}
	full()
	p.lane.Store64(laneHead, 12345)
	if full() != 0 {
		t.Fatal("pushed beyond a head that makes no sense")
	}
	if !c.Arm() {
		t.Fatal("cannot sleep")
	}
	if full() == 0 {
		t.Error("the lane is lost")
	}
	expectClean(t, region)
}

func TestLostDirtyBitIsFound(t *testing.T) {
	lose := func(c *Consumer) { c.block.Store64(chanDirty, 0) }
	region := newRegion(t, 4, MinLaneBytes)
	p, c := mustLease(t, region, 1, 0), mustOpen(t, region, 0)
	mustPush(t, p, 1, 1, 64)
	lose(c)
	if len(Check(region)) != 1 {
		t.Error("the checker does not miss the bit")
	}
	for i := 0; c.Arm(); i++ {
		if i > sweepEvery {
			t.Fatal("never found by a sweep")
		}
		c.Disarm()
	}
	expect(t, c, 1, 1)
	c.Arm()

	var r Record
	for i := 2; ; i++ { // by a producer that finds the lane full
		numbered(&r, 1, i, 500)
		lose(c)
		if p.Push(&r) != nil {
			break
		}
	}
	expect(t, c, 1, 2)
}

// A handle of a lease that was taken away stays useless, even when the same
// producer has leased the same lane again.
func TestStaleHandle(t *testing.T) {
	region := newRegion(t, 1, MinLaneBytes)
	stale := mustLease(t, region, 1, 0)
	ReleaseDead(region, 1)
	fresh, c := mustLease(t, region, 1, 0), mustOpen(t, region, 0)
	if err := stale.Push(&Record{}); !errors.Is(err, ErrClosed) {
		t.Error("push by a stale handle:", err)
	}
	stale.Release()
	mustPush(t, fresh, 1, 1, 64)
	expect(t, c, 1, 1)
}

// TestLaneChangesChannels passes the only lane between two channels while both
// consumers look at it all the time. Neither gets what is the other's, and
// neither calls it damage.
func TestLaneChangesChannels(t *testing.T) {
	rounds := 40_000
	if testing.Short() {
		rounds = 4000
	}
	region := newRegion(t, 1, MinLaneBytes)
	var sent, read [2]atomic.Int64
	var stop atomic.Bool
	var wg sync.WaitGroup
	for ch := range 2 {
		c := mustOpen(t, region, uint8(ch))
		wg.Go(func() {
			for r := (Record{}); !stop.Load() || read[ch].Load() < sent[ch].Load(); {
				for c.Next(&r) {
					if int(r.Target) != ch {
						t.Errorf("channel %d reads a record of channel %d", ch, r.Target)
					}
					read[ch].Add(1)
				}
				c.Arm()
				runtime.Gosched()
				if c.Bad() > 0 {
					t.Errorf("channel %d: %d bad", ch, c.Bad())
					return
				}
			}
		})
	}
	r := Record{Payload: make([]byte, 100)}
	for i := 0; i < rounds && !t.Failed(); {
		r.Target = uint32(i & 1)
		p, err := Lease(region, 1, uint8(r.Target))
		if err != nil {
			runtime.Gosched()
			continue
		}
		if err := p.Push(&r); err != nil {
			t.Error(err)
		}
		sent[r.Target].Add(1)
		p.Release()
		i++
	}
	stop.Store(true)
	wg.Wait()
	if !t.Failed() {
		expectClean(t, region)
	}
}
