package shm

import (
	"fmt"
	"math"

	"github.com/holdfast-quic/holdfast/internal/mem"
)

// Choice says which generations take new connections.
type Choice struct {
	Current Generation // takes what Canary does not
	Canary  Generation // 0: none
	Share   uint16     // of 65536 new connections, how many go to Canary
}

// Pick returns the generation that takes the new connection with this hash.
// The same hash and choice give the same generation, so retransmits agree.
func (c Choice) Pick(hash uint64) Generation {
	if c.Canary != 0 && uint16(hash>>48) < c.Share {
		return c.Canary
	}
	return c.Current
}

// Admission holds the Choice as one word of the segment: a handover, a promotion
// or a rollback is a single store. Only the supervisor stores.
type Admission struct {
	view mem.View
	kept kept // in the supervisor: what it wrote
}

// Load returns the choice in force. Current is 0 before the first Store. One
// atomic load.
func (a *Admission) Load() Choice {
	w := a.view.Load64(admissionChoice)
	c := Choice{Current: Generation(w >> 32), Share: uint16(w)}
	if delta := int16(w >> 16); delta != 0 {
		c.Canary = Generation(int64(c.Current) + int64(delta))
	} else {
		c.Share = 0
	}
	return c
}

// Store puts c in force for all workers at once.
//
// Preconditions: Canary is 0, or differs from Current by 1 to 32767.
func (a *Admission) Store(c Choice) {
	w := uint64(c.Current) << 32
	if c.Canary != 0 {
		delta := int64(c.Canary) - int64(c.Current)
		if delta == 0 || delta > math.MaxInt16 || delta < -math.MaxInt16 {
			panic(fmt.Sprintf("shm: canary generation %d beside %d", c.Canary, c.Current))
		}
		w |= uint64(uint16(delta))<<16 | uint64(c.Share)
	}
	a.kept.put(a.view, admissionChoice, w)
}
