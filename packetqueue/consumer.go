package packetqueue

import "github.com/holdfast-quic/holdfast/internal/mem"

const (
	// turnBytes is how much of one lane is read before the others get their turn.
	turnBytes = 64 << 10
	// maxFaults bounds the work that damaged lanes can cause in one Next.
	maxFaults = 64
	// sweepEvery is how many Arms pass between two looks at lanes whose dirty bit
	// is not set: bits may be lost to damage.
	sweepEvery = 64
	// coolEvery is how many changes of lane pass before lanes that have become
	// idle are taken off the list of a consumer that never sleeps.
	coolEvery = 1024
)

// Consumer is the reading end of one channel of a queue. It belongs to one
// goroutine at a time, and there is at most one for a channel. It holds no
// resource of the process.
//
// It visits only lanes that a producer has marked since it last found them
// empty. A lane stays on that list ("hot") while the consumer polls, so that
// producer and consumer at full speed do not fight over the dirty bits; Arm
// takes the idle ones off.
type Consumer struct {
	q       queue
	channel uint8
	block   mem.View // channel block
	lanes   []laneReader
	known   laneSet // every lane there is
	hot     laneSet
	cur     *laneReader // being read, nil when none
	index   int         // of the lane visited last
	bad     uint64
	arms    uint
	polls   uint
}

// laneReader is the consumer's own knowledge of one lane.
type laneReader struct {
	lane      mem.View
	data      mem.View
	tenure    owner // the lease that pos belongs to, 0 when none
	pos       uint64
	end       uint64 // tail when last looked at, checked
	start     uint64 // pos at the begin of the turn
	published uint64 // what the shared head holds
}

// OpenConsumer returns the reading end of channel of the queue in region.
// ErrNotQueue, ErrGeometry, ErrChannel.
//
// Preconditions: no other consumer of that channel is alive.
func OpenConsumer(region []byte, channel uint8) (*Consumer, error) {
	if channel >= Channels {
		return nil, ErrChannel
	}
	q, err := open(region)
	if err != nil {
		return nil, err
	}
	c := &Consumer{q: q, channel: channel, block: q.channel(channel), lanes: make([]laneReader, q.lanes), known: q.all(), index: -1}
	for i := range c.lanes {
		c.lanes[i].lane, c.lanes[i].data = q.control(i), q.data(i)
	}
	c.Disarm()
	c.hot = c.known // what came before there was a consumer
	c.cool()
	return c, nil
}

// Next fills r with the next record and says whether there was one. r.Payload
// aliases shared memory and is valid until the next Next, Done or Arm; a hostile
// producer may change its bytes at any time, so copy it before checking it. The
// order of records of one producer is kept. False means that nothing is to be
// had now; only Arm says that it is safe to sleep.
func (c *Consumer) Next(r *Record) bool {
	for faults := 0; faults < maxFaults; {
		if l := c.cur; l != nil && l.pos != l.end && l.pos-l.start < turnBytes {
			if c.take(l, r) {
				return true
			}
			faults++
			continue
		}
		if !c.advance(&faults) {
			return false
		}
	}
	return false
}

// Done gives the space of all records that Next has returned back to their
// producers. Call it after a run of Nexts.
func (c *Consumer) Done() {
	if c.cur != nil {
		c.cur.publish()
	}
}

// Bad returns how often damaged or malformed records were met: a damaged frame
// costs all that its lane held, another bad field one record.
func (c *Consumer) Bad() uint64 { return c.bad }

// take reads the record at l.pos. False: it was bad, and l.pos has moved on.
func (c *Consumer) take(l *laneReader, r *Record) bool {
	size := c.q.size
	if l.pos-l.published >= size/4 {
		l.publish()
	}
	off := l.pos & (size - 1)
	// The frame is read once; from here on only the local copy counts.
	f := frame(l.data.Load64(int(off)))
	if f.kind() == kindPadding {
		// Padding is committed together with the record behind it.
		if room := size - off; off == 0 || room >= l.end-l.pos {
			return c.skip(l)
		}
		l.pos += size - off
		off = 0
		f = frame(l.data.Load64(0))
	}
	if f.kind() != kindPacket || f.channel() != c.channel || f.bytes() > min(l.end-l.pos, size-off) {
		return c.skip(l)
	}
	l.pos += f.bytes()
	if !r.get(l.data, int(off), f) {
		c.bad++
		return false
	}
	return true
}

// skip gives up what is left of a lane whose framing makes no sense.
func (c *Consumer) skip(l *laneReader) bool {
	c.bad++
	l.pos = l.end
	l.publish()
	return false
}

// publish gives the space before pos back. Pairs with the load of the head in
// Producer.room: the payload was read before, and may be overwritten after.
func (l *laneReader) publish() {
	if l.published != l.pos {
		l.lane.Store64(laneHead, l.pos)
		l.published = l.pos
	}
}

// advance makes the next hot lane that holds records the current one.
func (c *Consumer) advance(faults *int) bool {
	c.Done()
	if c.polls++; c.polls%coolEvery == 0 {
		c.cool()
	}
	c.gather()
	first := c.index + 1
	for i := c.hot.next(first); i >= 0; i = c.hot.next(i + 1) {
		if c.visit(i, faults) {
			return true
		}
	}
	for i := c.hot.next(0); i >= 0 && i < first; i = c.hot.next(i + 1) {
		if c.visit(i, faults) {
			return true
		}
	}
	c.cur = nil
	return false
}

func (c *Consumer) visit(i int, faults *int) bool {
	l := &c.lanes[i]
	if l.tenure != 0 && l.lane.Load64(laneTail) == l.pos {
		return false
	}
	if !c.enter(l, faults) {
		return false
	}
	c.cur, c.index = l, i
	return true
}

// gather adds the lanes that producers have marked to the hot ones, and says
// whether any lane is hot.
func (c *Consumer) gather() bool {
	var any uint64
	for w := range (c.q.lanes + 63) / 64 {
		c.hot[w] |= c.block.Load64(chanDirty+8*w) & c.known[w]
		any |= c.hot[w]
	}
	return any != 0
}

// attach makes l follow the lane's present lease, if that is ours to read.
func (c *Consumer) attach(l *laneReader) (owner, bool) {
	w := owner(l.lane.Load64(laneOwner))
	if !w.readBy(c.channel) {
		l.tenure, l.end = 0, l.pos
		return w, false
	}
	if w.tenure() != l.tenure {
		// The former reader of the lane published its head before the lane could
		// be leased again, so the head is where the new lease began.
		l.tenure = w.tenure()
		l.pos = l.lane.Load64(laneHead)
		l.end, l.published = l.pos, l.pos
	}
	return w, true
}

// enter looks at the tail of a lane and says whether there is something to read.
//
// The tail is loaded between two loads of the owner word. If both name the same
// lease, the tail is of that lease: what lies before it was pushed to this
// channel. The load of the tail pairs with the swap in Producer.commit.
func (c *Consumer) enter(l *laneReader, faults *int) bool {
	if _, ours := c.attach(l); !ours {
		return false
	}
	tail := l.lane.Load64(laneTail)
	if owner(l.lane.Load64(laneOwner)).tenure() != l.tenure || tail == l.pos {
		return false
	}
	l.end = tail
	if tail-l.pos > c.q.size || tail%recordAlign != 0 || l.pos%recordAlign != 0 {
		*faults++
		return c.skip(l)
	}
	l.start = l.pos
	return true
}

// Pending returns how many packets wait in the lanes of this channel. While
// producers push it is an estimate.
func (c *Consumer) Pending() int {
	n := 0
	for i := range c.lanes {
		l := &c.lanes[i]
		if w := c.q.owner(i); w.readBy(c.channel) {
			from := l.pos
			if w.tenure() != l.tenure {
				from = l.lane.Load64(laneHead)
			}
			count, _ := c.q.walk(i, from, l.lane.Load64(laneTail), c.channel)
			n += count
		}
	}
	return n
}
