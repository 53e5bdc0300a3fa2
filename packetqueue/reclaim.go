package packetqueue

// holdTries bounds how often a reset follows a tail that moves under it, which
// only another reset or a hostile process can cause.
const holdTries = 16

// ReleaseDead ends every lease that token holds in the queue and returns how
// many there were. Records that the dead producer committed are still delivered.
// Idempotent; any number of processes may call it at once.
//
// Ring the doorbell of the queue's consumer afterwards, whatever it returns: the
// producer may have died after it took the armed word and before it rang.
//
// Preconditions: the process that token names is dead.
func ReleaseDead(region []byte, token uint64) int {
	return ReleaseStale(region, func(t uint64) bool { return t != token })
}

// ReleaseStale is ReleaseDead for every token that alive does not vouch for. It
// also frees lanes whose owner word makes no sense. A region that holds no queue
// has no leases.
//
// Preconditions: a process whose token alive rejects is dead.
func ReleaseStale(region []byte, alive func(token uint64) bool) int {
	return releaseStale(region, alive, nil)
}

func releaseStale(region []byte, alive func(token uint64) bool, fail failpoint) int {
	q, err := open(region)
	if err != nil {
		return 0
	}
	n := 0
	for i := range q.lanes {
		switch w := q.owner(i); w.state() {
		case stateLeased, stateClosing:
			// One that is closing has ended already and only waits to be empty.
			if !alive(w.token()) && q.closeLane(i, w, fail) && w.state() == stateLeased {
				n++
			}
		case stateHeld:
			// A reset that did not end, or damage. The lane's content is of no
			// known channel; the next lessee starts behind it.
			q.casOwner(i, w, w.free())
		case stateFree:
		}
	}
	return n
}

// Reset empties the queue for the next incarnation of its consumer and returns
// how many packets it threw away. Producers of the former incarnation that still
// hold lanes are fenced: their next Push, even one that has already begun,
// returns ErrClosed and queues nothing. A Reset that was cut short is completed
// by another one. A region that holds no queue, or has lost its geometry, is
// left alone: Format it.
//
// Preconditions: the consumer is dead.
func Reset(region []byte) (dropped int) { return reset(region, nil) }

func reset(region []byte, fail failpoint) (dropped int) {
	q, err := open(region)
	if err != nil {
		return 0
	}
	for i := range q.lanes {
		dropped += q.hold(i, fail)
	}
	q.clearChannels()
	fail.at(stepCleared)
	for i := range q.lanes {
		if w := q.owner(i); w.state() == stateHeld {
			q.casOwner(i, w, w.free())
		}
	}
	return dropped
}

// hold takes lane i away from its producer and empties it. Swaps, so that a
// hostile producer cannot keep it from ending, and every value follows from what
// is in the lane, so that several processes may do it at once.
func (q *queue) hold(i int, fail failpoint) (dropped int) {
	c := q.control(i)
	if w := owner(c.Load64(laneOwner)); w.state() != stateHeld {
		c.Swap64(laneOwner, uint64(w.held()))
	}
	fail.at(stepHeld)
	// Two lanes further: no commit that is under way expects that, and another
	// reset that still sees the old head finds no sense in the distance and counts
	// nothing.
	head := c.Load64(laneHead)
	next := (c.Load64(laneTail) + 3*q.size) &^ (q.size - 1)
	dropped, _ = q.walk(i, head, c.Swap64(laneTail, next), anyChannel)
	fail.at(stepFenced)
	for range holdTries {
		head, tail := c.Load64(laneHead), c.Load64(laneTail)
		if head == tail {
			break
		}
		c.CAS64(laneHead, head, tail)
	}
	fail.at(stepEmptied)
	return dropped
}
