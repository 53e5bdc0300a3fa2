package supervisor

import (
	"fmt"
	"os"

	"go.uber.org/zap"

	"github.com/holdfast-quic/holdfast/packetqueue"
	"github.com/holdfast-quic/holdfast/shm"
)

// slots is the worker slots of the segment: who lives in them, and their
// doorbells. It belongs to the loop.
type slots struct {
	seg *shm.Segment
	dir string // of the handover sockets; "" for none
	log *zap.Logger
	// doorbells are made when a slot is first used and kept for the life of
	// the service, so that a number which a worker holds stays right.
	doorbells []*os.File
	owners    []*worker
	// handover are the listening sockets by which the workers in the slots can
	// be reached when this supervisor is gone; nil where there is none.
	handover []*os.File
}

func newSlots(seg *shm.Segment, log *zap.Logger) *slots {
	n := seg.Geometry().Slots
	return &slots{seg: seg, log: log, doorbells: make([]*os.File, n), owners: make([]*worker, n), handover: make([]*os.File, n)}
}

func (s *slots) free() int {
	n := 0
	for _, w := range s.owners {
		if w == nil {
			n++
		}
	}
	return n
}

// take gives the lowest free slot to w, with an empty queue. The lowest one,
// so that few doorbells and little memory are in use.
func (s *slots) take(w *worker, listeners uint64) error {
	s.repair() // w could not attach to a damaged header
	for i, owner := range s.owners {
		if owner != nil {
			continue
		}
		if s.doorbells[i] == nil {
			bell, err := packetqueue.NewDoorbell()
			if err != nil {
				return err
			}
			s.doorbells[i] = bell
		}
		slot, g := shm.SlotID(i), s.seg.Geometry()
		if err := packetqueue.Format(s.seg.Queue(slot), g.Lanes, g.LaneBytes); err != nil {
			return fmt.Errorf("format the queue of slot %d: %w", slot, err)
		}
		s.owners[i] = w
		w.slot = slot
		s.seg.Directory().Assign(slot, w.incarnation, w.gen.id, listeners)
		return nil
	}
	return fmt.Errorf("%w: all %d worker slots are in use", ErrLimit, len(s.owners))
}

// reclaim frees all that a dead worker held: its name, its table entries, its
// leases in other workers' queues, and its own queue. It returns how many
// table entries and queued packets it left.
//
// Preconditions: the process is proven dead.
func (s *slots) reclaim(w *worker) (entries, packets int) {
	dir := s.seg.Directory()
	// First of all: from here on nobody steers to it.
	dir.MarkDead(w.slot)
	entries = s.seg.Table().Reclaim(w.owner())
	token := packetqueue.Token(uint16(w.slot), uint32(w.incarnation))
	for i, other := range s.owners {
		if other == nil || other == w {
			continue
		}
		packetqueue.ReleaseDead(s.seg.Queue(shm.SlotID(i)), token)
		// It may have died between taking the armed word and ringing.
		if err := packetqueue.Ring(s.doorbells[i]); err != nil {
			s.log.Error("ring a doorbell", zap.Int("slot", i), zap.Error(err))
		}
	}
	packets = packetqueue.Reset(s.seg.Queue(w.slot))
	s.seg.SupervisorCounters().Add(shm.DropDeadQueue, uint64(packets))
	// A producer that still holds a lane was fenced by Reset; after the punch
	// the lane is nobody's, and Format starts its next life elsewhere.
	if err := s.seg.PunchQueue(w.slot); err != nil {
		s.log.Error("give back the memory of a queue", zap.Uint16("slot", uint16(w.slot)), zap.Error(err))
	}
	dir.Clear(w.slot)
	s.closeHandover(w.slot)
	s.owners[w.slot] = nil
	return entries, packets
}

// repair puts right what only the supervisor writes, and frees lanes that no
// living process holds: damage leaves such behind.
func (s *slots) repair() {
	words, lanes := s.seg.Repair(), 0
	held := map[uint64]bool{}
	for _, w := range s.owners {
		if w != nil {
			held[packetqueue.Token(uint16(w.slot), uint32(w.incarnation))] = true
			held[packetqueue.Token(probeSlot, uint32(w.incarnation))] = true
		}
	}
	g := s.seg.Geometry()
	for _, slot := range s.inUse() {
		if packetqueue.Repair(s.seg.Queue(slot), g.Lanes, g.LaneBytes) {
			words++
		}
		lanes += packetqueue.ReleaseStale(s.seg.Queue(slot), func(token uint64) bool { return held[token] })
	}
	if words+lanes > 0 {
		s.log.Warn("the segment was damaged and is put right", zap.Int("words", words), zap.Int("lanes", lanes))
	}
}

// checkSegment verifies the segment and the queues in use. It may run in another
// goroutine than the loop's, on a list of the slots that were in use.
func checkSegment(seg *shm.Segment, inUse []shm.SlotID) []error {
	faults := seg.Check()
	for _, slot := range inUse {
		for _, err := range packetqueue.Check(seg.Queue(slot)) {
			faults = append(faults, fmt.Errorf("queue of slot %d: %w", slot, err))
		}
	}
	return faults
}

func (s *slots) inUse() []shm.SlotID {
	var out []shm.SlotID
	for i, w := range s.owners {
		if w != nil {
			out = append(out, shm.SlotID(i))
		}
	}
	return out
}

func (s *slots) close() {
	for _, bell := range s.doorbells {
		if bell != nil {
			bell.Close()
		}
	}
	for i := range s.handover {
		if s.handover[i] != nil {
			s.closeHandover(shm.SlotID(i))
		}
	}
}
