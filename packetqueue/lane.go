package packetqueue

// The points at which a producer, a supervisor or a consumer may die with a
// different state left behind. Tests kill a process at each.
type step uint8

const (
	stepLeased step = iota + 1
	stepPadding
	stepFrame
	stepHeader
	stepPayload
	stepCommitted
	stepMarked
	stepRingClaimed
	stepClosing
	stepHeld
	stepFenced
	stepEmptied
	stepCleared
)

// failpoint is called at each step when it is set.
type failpoint func(step)

func (f failpoint) at(s step) {
	if f != nil {
		f(s)
	}
}

func (q *queue) owner(i int) owner { return owner(q.control(i).Load64(laneOwner)) }

func (q *queue) casOwner(i int, old, o owner) bool {
	return q.control(i).CAS64(laneOwner, uint64(old), uint64(o))
}

// empty says whether everything committed to lane i has been given back. The
// head is trusted here only as far as a producer's share goes: a forged one can
// lose that producer's packets.
//
// Preconditions: the lane's state was closing when it was read before, so that
// its tail does not move any more.
func (q *queue) empty(i int) bool {
	c := q.control(i)
	return c.Load64(laneTail) == c.Load64(laneHead)
}

// mark tells the consumer of channel to look at lane i. The bit is loaded first:
// under load it is nearly always set, and a load leaves the line shared.
func (q *queue) mark(i int, channel uint8) {
	ch, off, bit := q.channel(channel), chanDirty+i>>6<<3, uint64(1)<<(i&63)
	if ch.Load64(off)&bit == 0 {
		ch.Or64(off, bit)
	}
}

// closeLane ends the lease w of lane i: frees the lane when it is empty, else
// leaves that to the consumer. False when the lease had ended already.
//
// Preconditions: the producer that holds w is the caller, or is dead.
func (q *queue) closeLane(i int, w owner, fail failpoint) bool {
	closing := w.with(stateClosing)
	if w.state() == stateLeased && !q.casOwner(i, w, closing) {
		return false
	}
	fail.at(stepClosing)
	if q.empty(i) {
		q.casOwner(i, closing, closing.free())
		return true
	}
	q.mark(i, w.channel())
	return true
}

// Lease claims a lane of the queue in region for one producer, named by token
// (see Token), that will push to one channel. ErrNoLane when every lane is
// taken; the queue's supervisor gets lanes of dead producers back with
// ReleaseDead. Also ErrNotQueue, ErrGeometry, ErrToken, ErrChannel. Safe to call
// from any number of goroutines and processes at once.
func Lease(region []byte, token uint64, channel uint8) (*Producer, error) {
	return lease(region, token, channel, nil)
}

func lease(region []byte, token uint64, channel uint8, fail failpoint) (*Producer, error) {
	if token == 0 || token>>tokenBits != 0 {
		return nil, ErrToken
	}
	if channel >= Channels {
		return nil, ErrChannel
	}
	q, err := open(region)
	if err != nil {
		return nil, err
	}
	// Free lanes first; then lanes that only wait for a sleeping consumer to
	// notice that they were handed back.
	for _, want := range [...]state{stateFree, stateClosing} {
		for i := range q.lanes {
			w := q.owner(i)
			if w.state() != want || (want == stateClosing && !q.empty(i)) {
				continue
			}
			if mine := w.next(token, channel); q.casOwner(i, w, mine) {
				fail.at(stepLeased)
				return newProducer(&q, i, mine, fail), nil
			}
		}
	}
	return nil, ErrNoLane
}
