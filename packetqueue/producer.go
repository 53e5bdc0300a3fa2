package packetqueue

import "github.com/holdfast-quic/holdfast/internal/mem"

// stallCheck is how often, in nanoseconds by the clock of Record.Pushed, a
// producer looks whether the consumer has moved at all. If it has not, the
// producer rings even though nobody is armed: that undoes a wake-up lost to a
// peer that died, or to a damaged word.
const stallCheck = 10e6

// Producer is the writing end of one leased lane. It belongs to one goroutine at
// a time. It holds no resource of the process, only the lane.
type Producer struct {
	lane    mem.View // control block
	data    mem.View
	channel mem.View
	word    owner
	size    uint64
	tail    uint64 // what the shared tail holds: nobody else may write it
	head    uint64 // the consumer's progress when last looked at
	dirty   int    // offset of the lane's word in the channel block
	bit     uint64
	q       queue
	index   int
	fail    failpoint

	looked     int64  // time of the last look at the consumer's progress
	lookedHead uint64 // and what it was
	behind     bool   // records were waiting then
	force      bool   // ring without being asked to
	closed     bool
}

func newProducer(q *queue, i int, w owner, fail failpoint) *Producer {
	p := &Producer{
		lane: q.control(i), data: q.data(i), channel: q.channel(w.channel()), word: w, size: q.size,
		dirty: chanDirty + i>>6<<3, bit: 1 << (i & 63), q: *q, index: i, fail: fail,
	}
	p.tail, p.head = p.lane.Load64(laneTail), p.lane.Load64(laneHead)
	if p.tail%recordAlign != 0 || p.head%recordAlign != 0 || p.tail-p.head > p.size {
		// Damaged while nobody owned it. Nothing can be in it that is worth more
		// than what is about to come.
		p.tail = (p.tail + recordAlign - 1) &^ (recordAlign - 1)
		p.head = p.tail
		p.lane.Store64(laneTail, p.tail)
		p.lane.Store64(laneHead, p.head)
	}
	return p
}

// Push copies r into the lane and makes it visible to the consumer. It never
// blocks and never allocates. ErrFull: drop the packet, and still ask NeedRing.
// ErrTooLarge, ErrRecord: no lane of this geometry takes such a record.
// ErrClosed: the lane is gone; lease another. On any error nothing was queued.
func (p *Producer) Push(r *Record) error {
	n := len(r.Payload)
	need := recordBytes(n)
	if n > MaxPayload || need > p.size/2 {
		return ErrTooLarge
	}
	if !r.valid() {
		return ErrRecord
	}
	if p.closed || owner(p.lane.Load64(laneOwner)) != p.word {
		return p.lost()
	}
	off := p.tail & (p.size - 1)
	var padding uint64
	if room := p.size - off; room < need {
		padding = room
	}
	if !p.room(need+padding, r.Pushed) {
		return ErrFull
	}
	if padding > 0 {
		paddingFrame.put(p.data.Bytes(int(off), recTarget))
		p.fail.at(stepPadding)
		off = 0
	}
	rec := p.data.Bytes(int(off), recordHeader+n)
	packetFrame(r, p.word.channel()).put(rec)
	p.fail.at(stepFrame)
	r.put(rec)
	p.fail.at(stepHeader)
	copy(rec[recordHeader:], r.Payload)
	p.fail.at(stepPayload)
	return p.commit(need+padding, r.Pushed)
}

// commit publishes the bytes up to the new tail.
//
// The swap of the tail makes the plain stores before it visible to the load of
// the tail in Consumer.enter. It is a compare-and-swap and not a store because
// this process may have slept since it read the owner word: if the lane was
// reset meanwhile, the tail is not what it was, and the late commit is refused.
func (p *Producer) commit(n uint64, now int64) error {
	if !p.lane.CAS64(laneTail, p.tail, p.tail+n) {
		return p.lost()
	}
	p.tail += n
	p.fail.at(stepCommitted)
	p.mark()
	p.fail.at(stepMarked)
	p.look(now)
	return nil
}

// mark sets the lane's dirty bit. It comes after the swap of the tail, with
// sequential consistency, and pairs with the clearing in Consumer.cool, which
// comes before a load of the tail: either this load finds the bit set before it
// is cleared, so that the consumer's load finds the new tail, or the bit is set
// anew and the consumer's last look before sleeping finds it.
func (p *Producer) mark() {
	if p.channel.Load64(p.dirty)&p.bit == 0 {
		p.channel.Or64(p.dirty, p.bit)
	}
}

// NeedRing says whether the consumer sleeps, or is about to, and has to be woken
// with RingFD. Of several producers that ask, one gets true. Ask it after a run
// of pushes, once; also when all of them failed.
//
// Dekker's pattern: the producer stores the dirty bit, then loads the armed
// word; Consumer.Arm stores the armed word, then loads the dirty bits. Both need
// sequentially consistent order between the store and the load, which Go's
// atomics give; so at least one of the two sees the other.
func (p *Producer) NeedRing() bool {
	armed := p.channel.Load64(chanArmed)
	if armed != 0 && p.channel.CAS64(chanArmed, armed, 0) {
		p.fail.at(stepRingClaimed)
		p.force = false
		return true
	}
	force := p.force
	p.force = false
	return force
}

// Release hands the lane back. Records in it are still delivered; the lane is
// free once the consumer has read them. Idempotent.
func (p *Producer) Release() {
	if !p.closed {
		p.closed = true
		p.q.closeLane(p.index, p.word, p.fail)
	}
}

// lost is the end of a lane that was reset or damaged. If the owner word still
// says that it is ours the lane is handed back, so that it is not lost for ever.
func (p *Producer) lost() error {
	p.Release()
	return ErrClosed
}

// room says whether n bytes fit. Only when they do not fit by the last known
// head is the consumer's cache line touched.
func (p *Producer) room(n uint64, now int64) bool {
	if p.tail-p.head+n <= p.size {
		return true
	}
	head := p.lane.Load64(laneHead)
	if used := p.tail - head; used <= p.size && used+n <= p.size {
		p.head = head
		return true
	}
	// A consumer that lost sight of this lane would never make room again.
	p.mark()
	p.look(now)
	return false
}

// look notices a consumer that does not move although records wait for it.
func (p *Producer) look(now int64) {
	if now-p.looked < stallCheck {
		return
	}
	head := p.lane.Load64(laneHead)
	if p.behind && head == p.lookedHead {
		p.force = true
	}
	p.looked, p.lookedHead, p.behind = now, head, head != p.tail
}
