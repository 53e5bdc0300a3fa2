package worker

import (
	"errors"

	"github.com/holdfast-quic/holdfast/packetqueue"
	"github.com/holdfast-quic/holdfast/shm"
)

// lanes are the ways of one listener into the queues of other workers. A lane
// is leased when the first packet needs it and kept until its target ends or
// this worker drains. They belong to the reading goroutine.
type lanes struct {
	node    *node
	channel uint8
	to      []lane       // by slot
	dirty   []shm.SlotID // pushed to since the last ring
}

type lane struct {
	producer    *packetqueue.Producer
	incarnation shm.Incarnation
	dirty       bool
}

func newLanes(n *node, channel uint8) lanes {
	slots := n.segment.Geometry().Slots
	return lanes{node: n, channel: channel, to: make([]lane, slots), dirty: make([]shm.SlotID, 0, slots)}
}

// push puts r into the queue of owner. On failure it returns the counter that
// tells why.
func (l *lanes) push(owner shm.Owner, r *packetqueue.Record) (shm.Counter, bool) {
	if !l.node.directory.Alive(owner) {
		return shm.DropDeadTarget, false
	}
	if !l.node.bells.has(owner.Slot) {
		return shm.DropNoLane, false // it could not be woken
	}
	to := &l.to[owner.Slot]
	if to.producer == nil || to.incarnation != owner.Incarnation {
		if reason, ok := l.lease(owner); !ok {
			return reason, false
		}
	}
	r.Target = uint32(owner.Incarnation)
	err := to.producer.Push(r)
	if errors.Is(err, packetqueue.ErrClosed) {
		// Reset for a new incarnation, or damaged: one more try on another lane.
		to.producer = nil
		if !l.node.directory.Alive(owner) {
			return shm.DropDeadTarget, false
		}
		if reason, ok := l.lease(owner); !ok {
			return reason, false
		}
		err = to.producer.Push(r)
	}
	if !to.dirty {
		to.dirty = true
		l.dirty = append(l.dirty, owner.Slot)
	}
	if err != nil {
		return shm.DropQueueFull, false
	}
	return 0, true
}

// lease gets a lane into the queue of owner in place of one that was for an
// earlier incarnation. On failure it returns the counter that tells why.
//
// An owner that does not serve the listener gets none: it would never read what
// is in it, and a lane that holds something cannot be given back. Only a
// stranger sends packets of a connection to another listener than its own.
func (l *lanes) lease(owner shm.Owner) (shm.Counter, bool) {
	to := &l.to[owner.Slot]
	if to.producer != nil {
		to.producer.Release()
		to.producer = nil
	}
	if l.node.directory.Record(owner.Slot).Listeners>>l.channel&1 == 0 {
		return shm.DropNoListener, false
	}
	p, err := packetqueue.Lease(l.node.segment.Queue(owner.Slot), l.node.token(), l.channel)
	if err != nil {
		return shm.DropNoLane, false
	}
	to.producer, to.incarnation = p, owner.Incarnation
	return 0, true
}

// ring wakes those consumers that were pushed to and sleep. Once per batch, so
// that a burst costs its target one wake-up.
func (l *lanes) ring() (rung uint64) {
	for _, slot := range l.dirty {
		to := &l.to[slot]
		to.dirty = false
		if to.producer != nil && to.producer.NeedRing() {
			l.node.bells.ring(slot)
			rung++
		}
	}
	l.dirty = l.dirty[:0]
	return rung
}

// release hands all lanes back. What is in them is still delivered.
func (l *lanes) release() {
	for i := range l.to {
		if p := l.to[i].producer; p != nil {
			p.Release()
			l.to[i] = lane{}
		}
	}
	l.dirty = l.dirty[:0]
}
