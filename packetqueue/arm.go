package packetqueue

// Arm announces that the consumer is about to sleep until its doorbell rings.
// False: there is something to read, do not sleep, go on with Next. After a true
// Arm any producer that pushes rings. Arm implies Done.
//
// Dekker's pattern, the other half of which is in Producer.NeedRing: the armed
// word is stored first, the dirty bits are loaded after, with sequential
// consistency. A producer that marked before that load is seen here; one that
// marks later finds the armed word set.
func (c *Consumer) Arm() bool {
	c.Done()
	if c.arms++; c.arms%sweepEvery == 0 {
		c.hot = c.known
	}
	if !c.cool() {
		return false
	}
	c.block.Store64(chanArmed, 1)
	if c.gather() {
		c.Disarm()
		return false
	}
	return true
}

// Disarm takes Arm back, so that producers do not ring a consumer that is awake.
func (c *Consumer) Disarm() {
	if c.block.Load64(chanArmed) != 0 {
		c.block.Store64(chanArmed, 0)
	}
}

// cool takes lanes that are empty off the hot list, and says whether all were.
//
// The bits are cleared first and the tails loaded after. A producer commits,
// then marks; so whatever it committed before it found the bit still set is seen
// by the load here.
func (c *Consumer) cool() bool {
	for w := range (c.q.lanes + 63) / 64 {
		if off := chanDirty + 8*w; c.block.Load64(off)&c.hot[w] != 0 {
			c.block.And64(off, ^c.hot[w])
		}
	}
	idle := true
	for i := c.hot.next(0); i >= 0; i = c.hot.next(i + 1) {
		if c.settle(i) {
			c.hot.remove(i)
			continue
		}
		// Who looks from outside can rely on it: a lane that holds records is marked.
		c.q.mark(i, c.channel)
		idle = false
	}
	if idle {
		c.cur = nil
	}
	return idle
}

// settle says whether lane i holds nothing for this consumer, and frees it when
// its producer has handed it back.
func (c *Consumer) settle(i int) bool {
	l := &c.lanes[i]
	w, ours := c.attach(l)
	if !ours {
		return true
	}
	// After the owner word: once that says closing, the tail is final.
	if l.lane.Load64(laneTail) != l.pos {
		return false
	}
	if l.lane.Load64(laneHead) != l.pos {
		l.lane.Store64(laneHead, l.pos) // damaged: the producer would find no room for ever
	}
	l.published = l.pos
	if w.state() == stateClosing && c.q.casOwner(i, w, w.free()) {
		l.tenure = 0
	}
	return true
}
