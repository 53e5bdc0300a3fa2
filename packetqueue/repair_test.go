package packetqueue

import (
	"math/rand/v2"
	"testing"
)

// A queue whose header was damaged can be opened again after a repair, and what
// was in it is still there.
func TestRepairOfTheHeader(t *testing.T) {
	const lanes, laneBytes = 4, 1 << 14
	region := make([]byte, Size(lanes, laneBytes))
	if err := Format(region, lanes, laneBytes); err != nil {
		t.Fatal(err)
	}
	p, err := Lease(region, Token(1, 1), 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Push(&Record{Target: 1, Payload: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	if Repair(region, lanes, laneBytes) {
		t.Error("repaired without damage")
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		region[r.IntN(offLaneBytes+8)] ^= byte(1 + r.IntN(255))
		if !Repair(region, lanes, laneBytes) {
			t.Fatal("damage not seen")
		}
		if n := Pending(region); n != 1 {
			t.Fatalf("%d packets wait", n)
		}
	}
	if faults := Check(region); len(faults) > 0 {
		t.Error(faults)
	}
	if Repair(region[:headerBytes], lanes, laneBytes) {
		t.Error("repaired what is too small to be a queue")
	}
}

// A lease that a dead producer gave back, and whose records nobody has read yet,
// is not found anew by each look.
func TestStaleLeaseIsCountedOnce(t *testing.T) {
	region := make([]byte, Size(2, 1<<14))
	if err := Format(region, 2, 1<<14); err != nil {
		t.Fatal(err)
	}
	p, err := Lease(region, Token(1, 1), 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Push(&Record{Target: 1, Payload: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	dead := func(uint64) bool { return false }
	if n := ReleaseStale(region, dead); n != 1 {
		t.Errorf("%d lanes released", n)
	}
	if n := ReleaseStale(region, dead); n != 0 {
		t.Errorf("%d lanes released a second time", n)
	}
	if n := Pending(region); n != 1 {
		t.Errorf("%d packets wait", n)
	}
}
