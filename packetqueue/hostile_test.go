package packetqueue

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"
)

// patch overwrites one aligned word of region beyond the header.
func patch(region []byte, where, value uint64) {
	words := uint64(len(region)-headerBytes) / 8
	binary.NativeEndian.PutUint64(region[headerBytes+where%words*8:], value)
}

// interesting turns a random number into a value that is likely to hurt.
func interesting(rnd *rand.Rand, region []byte) uint64 {
	q, err := open(region)
	if err != nil {
		return rnd.Uint64()
	}
	tail := q.control(rnd.IntN(q.lanes)).Load64(laneTail)
	switch rnd.IntN(8) {
	case 0:
		return 0
	case 1:
		return ^uint64(0)
	case 2:
		return tail + uint64(rnd.IntN(int(2*q.size))) - q.size
	case 3:
		return (tail + uint64(rnd.IntN(int(2*q.size))) - q.size) &^ 7
	case 4:
		return uint64(paddingFrame)
	case 5:
		return uint64(kindPacket)<<frameKind | uint64(rnd.Uint32())
	case 6:
		return uint64(owner(0).next(uint64(rnd.IntN(4)), uint8(rnd.IntN(3))).with(state(rnd.IntN(4))))
	default:
		return rnd.Uint64()
	}
}

// target picks the offset of a word: control words and frames are hit more often
// than payload.
func target(rnd *rand.Rand, region []byte) uint64 {
	lanes := int(binary.NativeEndian.Uint32(region[offLanes:]))
	control := (offControls - headerBytes + rnd.IntN(lanes)*controlBytes) / 8
	switch rnd.IntN(6) {
	case 0:
		return uint64(control + laneOwner/8)
	case 1:
		return uint64(control + laneTail/8)
	case 2:
		return uint64(control + laneHead/8)
	case 3:
		return uint64(rnd.IntN(3*channelBytes/8) + offChannels/8 - headerBytes/8)
	case 4:
		return uint64(frameOf(rnd, region)/8 - headerBytes/8)
	default:
		return rnd.Uint64()
	}
}

// frameOf returns the offset of the frame of a record that waits, if any does.
func frameOf(rnd *rand.Rand, region []byte) int {
	q, err := open(region)
	if err != nil {
		return headerBytes
	}
	i := rnd.IntN(q.lanes)
	at, tail := q.control(i).Load64(laneHead), q.control(i).Load64(laneTail)
	data := q.data(i)
	for n := rnd.IntN(8); n > 0 && tail-at <= q.size && at%recordAlign == 0; n-- {
		next := at + frame(data.Load64(int(at&(q.size-1)))).bytes()
		if next-at >= tail-at {
			break
		}
		at = next
	}
	return offData(q.lanes) + i*int(q.size) + int(at&(q.size-1))&^7
}

// drain reads what there is. A queue of damaged lanes may yield any records, but
// not without end, and never memory of others.
func drain(t *testing.T, c *Consumer) {
	t.Helper()
	var sum byte
	most := c.q.lanes*int(c.q.size)/recordHeader + 1
	for r, n := (Record{}), 0; c.Next(&r); n++ {
		if n > 2*most {
			t.Fatal("no end of records")
		}
		if len(r.Payload) > int(c.q.size) || int(r.Segment) > len(r.Payload) || r.ECN > 3 {
			t.Fatalf("record out of range: %d bytes, segment %d, ECN %d", len(r.Payload), r.Segment, r.ECN)
		}
		for _, b := range r.Payload {
			sum ^= b
		}
	}
	c.Arm()
	c.Disarm()
}

// heals checks that a queue with an intact header serves again: at once when a
// lane can be had, else after a reset.
func heals(t *testing.T, region []byte, c *Consumer) {
	t.Helper()
	ReleaseStale(region, func(uint64) bool { return false })
	if delivers(t, region, c) {
		return
	}
	Reset(region)
	expectClean(t, region)
	if !delivers(t, region, mustOpen(t, region, c.channel)) {
		t.Fatal("the queue does not work after a reset")
	}
}

func delivers(t *testing.T, region []byte, c *Consumer) bool {
	t.Helper()
	const id, tries = 7777, 40
	p, err := Lease(region, id, c.channel)
	for try := range tries {
		if errors.Is(err, ErrNoLane) {
			return false
		}
		var r Record
		numbered(&r, id, try, 64)
		if pushErr := p.Push(&r); errors.Is(pushErr, ErrClosed) {
			p, err = Lease(region, id, c.channel)
		}
		for range sweepEvery + 1 { // by then even a lane without its bit is found
			for c.Next(&r) {
				if got, number, err := numberOf(&r); err == nil && got == id && number == try {
					p.Release()
					return true
				}
			}
			if c.Arm() {
				c.Disarm()
			}
		}
	}
	t.Fatal("a leased lane does not deliver")
	return false
}

// TestDamageUnderTraffic writes random words into the region while producers and
// a consumer work, in one goroutine so that a failure can be repeated.
func TestDamageUnderTraffic(t *testing.T) {
	rounds := 300
	if testing.Short() {
		rounds = 30
	}
	for range rounds {
		seed := rand.Uint64()
		damageUnderTraffic(t, rand.New(rand.NewPCG(seed, 0)))
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func damageUnderTraffic(t *testing.T, rnd *rand.Rand) {
	region := newRegion(t, 4, 4096)
	consumers := [2]*Consumer{mustOpen(t, region, 0), mustOpen(t, region, 1)}
	var producers [3]*Producer
	for range 300 {
		i := rnd.IntN(len(producers))
		switch rnd.IntN(10) {
		case 0, 1:
			patch(region, target(rnd, region), interesting(rnd, region))
		case 2:
			drain(t, consumers[rnd.IntN(2)])
		case 3:
			ReleaseDead(region, uint64(rnd.IntN(5)))
		case 4:
			Pending(region)
			consumers[0].Pending()
		default:
			if producers[i] == nil {
				producers[i], _ = Lease(region, uint64(i+1), uint8(rnd.IntN(2)))
				continue
			}
			var r Record
			numbered(&r, i, 1, rnd.IntN(1000))
			if err := producers[i].Push(&r); errors.Is(err, ErrClosed) {
				producers[i] = nil
			} else {
				producers[i].NeedRing()
			}
		}
	}
	heals(t, region, consumers[rnd.IntN(2)])
}

// A consumer that a damaged word has put to sleep for ever is woken by the next
// push after a while.
func TestDamagedArmedWordHeals(t *testing.T) {
	region := newRegion(t, 1, testBytes)
	p, c := mustLease(t, region, 1, 0), mustOpen(t, region, 0)
	if !c.Arm() {
		t.Fatal("cannot sleep")
	}
	c.block.Store64(chanArmed, 0)
	r := Record{Payload: make([]byte, 64)}
	for ms := range int64(100) {
		r.Pushed = 1e9 + ms*1e6
		if err := p.Push(&r); err != nil {
			t.Fatal(err)
		}
		if p.NeedRing() {
			t.Logf("rings after %d ms", ms)
			return
		}
	}
	t.Error("never rings")
}

// A consumer that does move is not rung without need.
func TestNoRingForABusyConsumer(t *testing.T) {
	region := newRegion(t, 1, testBytes)
	p, c := mustLease(t, region, 1, 0), mustOpen(t, region, 0)
	r := Record{Payload: make([]byte, 64)}
	for ms := range int64(200) {
		r.Pushed = 1e9 + ms*1e6
		for range 3 {
			if err := p.Push(&r); err != nil {
				t.Fatal(err)
			}
			if p.NeedRing() {
				t.Fatal("rings a consumer that is awake")
			}
			c.Next(&r)
		}
		c.Done()
	}
}

func TestBadRecordCostsItsLaneOnly(t *testing.T) {
	region := newRegion(t, 2, testBytes)
	bad, good, c := mustLease(t, region, 1, 0), mustLease(t, region, 2, 0), mustOpen(t, region, 0)
	for i := range 3 {
		mustPush(t, bad, 1, i, 64)
		mustPush(t, good, 2, i, 64)
	}
	at := int(bad.tail&(bad.size-1)) - 2*int(recordBytes(64))
	if at < 0 {
		t.Fatal("lane starts in the middle")
	}
	bad.data.Store64(at, 0xffff)
	if faults := Check(region); len(faults) != 1 || !errors.Is(faults[0], ErrCorrupt) {
		t.Error("check:", faults)
	}
	var good2, bad1 int
	for r := (Record{}); c.Next(&r); {
		if r.Target == 2 {
			good2++
		} else {
			bad1++
		}
	}
	if good2 != 3 || bad1 != 1 || c.Bad() != 1 {
		t.Errorf("%d and %d records, %d bad", good2, bad1, c.Bad())
	}
	mustPush(t, bad, 1, 9, 64)
	expect(t, c, 1, 9)
	if !c.Arm() {
		t.Error("cannot sleep")
	}
	expectClean(t, region)
}

// FuzzConsumer lets the input say which words of a region hold what, and when
// the consumer and an honest producer move.
func FuzzConsumer(f *testing.F) {
	f.Add(uint64(1), []byte{0})
	f.Add(uint64(2), []byte("\x01\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff\x02\x03\x04"))
	f.Fuzz(func(t *testing.T, seed uint64, program []byte) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		region := newRegion(t, 3, 4096)
		c := mustOpen(t, region, 0)
		p := mustLease(t, region, 1, 0)
		for len(program) > 0 {
			op := program[0]
			program = program[1:]
			var r Record
			numbered(&r, 1, 1, int(op)*8)
			switch op % 6 {
			case 0:
				if len(program) < 12 {
					program = nil
					continue
				}
				where := uint64(binary.LittleEndian.Uint32(program))
				if op&0x80 != 0 {
					where = target(rnd, region)
				}
				patch(region, where, binary.LittleEndian.Uint64(program[4:]))
				program = program[12:]
			case 1:
				patch(region, target(rnd, region), interesting(rnd, region))
			case 2:
				if errors.Is(p.Push(&r), ErrClosed) {
					if again, err := Lease(region, 1, 0); err == nil {
						p = again
					}
				}
			case 3:
				drain(t, c)
			case 4:
				c.Next(&r)
				c.Arm()
			case 5:
				Pending(region)
				c.Pending()
				ReleaseDead(region, uint64(op))
			}
		}
		drain(t, c)
		heals(t, region, c)
	})
}

// FuzzOpen treats the input as the start of a region.
func FuzzOpen(f *testing.F) {
	f.Add(newRegion(f, 1, 4096)[:headerBytes])
	f.Fuzz(func(t *testing.T, head []byte) {
		region := newRegion(t, 2, 4096)
		copy(region, head)
		if c, err := OpenConsumer(region, 0); err == nil {
			drain(t, c)
		}
		if p, err := Lease(region, 1, 0); err == nil {
			_ = p.Push(&Record{Payload: head[:min(len(head), 1000)]})
		}
		Pending(region)
		ReleaseDead(region, 1)
		Reset(region)
	})
}
