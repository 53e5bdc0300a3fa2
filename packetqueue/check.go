package packetqueue

import (
	"fmt"
	"time"
)

// anyChannel lets walk accept records of every channel.
const anyChannel = Channels

// Pending returns how many packets wait in all lanes of the queue. While
// producers push or the consumer pulls it is an estimate. A region that holds no
// queue has none.
func Pending(region []byte) int {
	q, err := open(region)
	if err != nil {
		return 0
	}
	n := 0
	for i := range q.lanes {
		c := q.control(i)
		count, _ := q.walk(i, c.Load64(laneHead), c.Load64(laneTail), anyChannel)
		n += count
	}
	return n
}

// walk counts the packets in lane i between two cursors, up to the first record
// whose frame makes no sense.
func (q *queue) walk(i int, from, to uint64, channel uint8) (n int, err error) {
	if to-from > q.size || from%recordAlign != 0 || to%recordAlign != 0 {
		return 0, fmt.Errorf("%w: lane %d: head %#x and tail %#x do not belong together", ErrCorrupt, i, from, to)
	}
	data := q.data(i)
	for from != to {
		off := from & (q.size - 1)
		f := frame(data.Load64(int(off)))
		if room := q.size - off; f.kind() == kindPadding && off != 0 && room < to-from {
			from += room
			continue
		}
		if f.kind() != kindPacket || f.bytes() > min(to-from, q.size-off) || !f.sane() ||
			(channel != anyChannel && f.channel() != channel) {
			return n, fmt.Errorf("%w: lane %d: frame %#x at %#x", ErrCorrupt, i, uint64(f), from)
		}
		n += f.packets()
		from += f.bytes()
	}
	return n, nil
}

// Check verifies every invariant of the queue in region and returns the faults,
// each wrapping ErrCorrupt (or the error of opening the region). It only reads.
// It may run beside live producers and consumers: what looks wrong is looked at
// again before it is called a fault, which may take some milliseconds.
func Check(region []byte) []error {
	q, err := open(region)
	if err != nil {
		return []error{err}
	}
	var faults []error
	for i := range q.lanes {
		faults = append(faults, settled(func() error { return q.checkLane(i) })...)
	}
	for c := range uint8(Channels) {
		faults = append(faults, settled(func() error { return q.checkChannel(c) })...)
	}
	return faults
}

// settled reports a fault only when it is there at each of a few looks: a live
// producer is between two stores for a moment, not for long.
func settled(look func() error) []error {
	const looks = 8
	for range looks {
		if look() == nil {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	if err := look(); err != nil {
		return []error{err}
	}
	return nil
}

func (q *queue) checkLane(i int) error {
	c := q.control(i)
	w := owner(c.Load64(laneOwner))
	head, tail := c.Load64(laneHead), c.Load64(laneTail)
	fault := func(format string, args ...any) error {
		return fmt.Errorf("%w: lane %d: %s", ErrCorrupt, i, fmt.Sprintf(format, args...))
	}
	switch w.state() {
	case stateHeld:
		return fault("held by a reset that did not end")
	case stateFree:
		if w != w.free() {
			return fault("free, but its owner word is %#x", uint64(w))
		}
		if head != tail {
			return fault("free, but head %#x is not tail %#x", head, tail)
		}
		return nil
	case stateLeased, stateClosing:
		if w.token() == 0 {
			return fault("leased to nobody")
		}
	}
	if _, err := q.walk(i, head, tail, w.channel()); err != nil {
		return err
	}
	if head != tail && q.channel(w.channel()).Load64(chanDirty+i>>6<<3)&(1<<(i&63)) == 0 {
		return fault("holds records, but is not marked for channel %d", w.channel())
	}
	return nil
}

func (q *queue) checkChannel(c uint8) error {
	block, known := q.channel(c), q.all()
	if armed := block.Load64(chanArmed); armed > 1 {
		return fmt.Errorf("%w: channel %d: armed word is %#x", ErrCorrupt, c, armed)
	}
	for w := range dirtyWords {
		if extra := block.Load64(chanDirty+8*w) &^ known[w]; extra != 0 {
			return fmt.Errorf("%w: channel %d: marks %#x in word %d name no lane", ErrCorrupt, c, extra, w)
		}
	}
	return nil
}
