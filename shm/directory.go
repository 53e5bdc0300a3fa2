package shm

import (
	"fmt"
	"sync/atomic"

	"github.com/holdfast-quic/holdfast/internal/mem"
)

// Phase is how far a worker is, by its own account.
type Phase uint8

// Phases, in the order in which a worker passes through them.
const (
	PhaseNone Phase = iota
	PhaseStarting
	PhaseServing
	PhaseDraining
	PhaseDone
)

// String returns the word that status and logs use.
func (p Phase) String() string {
	names := [...]string{"none", "starting", "serving", "draining", "done"}
	if int(p) < len(names) {
		return names[p]
	}
	return fmt.Sprintf("phase(%d)", uint8(p))
}

// Record is what the directory says about one slot.
type Record struct {
	Incarnation Incarnation // 0: never used, or cleared
	Generation  Generation
	PID         int
	Phase       Phase
	Listeners   uint64 // bit i: serves the listener with ID i
	Serving     bool   // new connections may be sent to it
	Alive       bool
	Heartbeat   int64 // CLOCK_MONOTONIC in ns of the last beat, 0: none yet
	QUICConns   uint64
	TCPConns    uint64
}

// Flags beside the incarnation in a record's identity word, and where its check
// begins.
const (
	identityAlive   = 1 << 32
	identityServing = 1 << 33
	identityCheck   = 34
)

// seal adds the check to an identity. A damaged word must not pass for that of a
// dead process: its clients would be told that their connections are gone.
func seal(identity uint64) uint64 {
	const odd = 0x9e3779b97f4a7c15 // 2^64 / golden ratio: every bit of the identity counts
	return identity | identity*odd>>identityCheck<<identityCheck
}

// sound reports whether w is an identity word as the supervisor writes it.
func sound(w uint64) bool { return w == seal(w&(1<<identityCheck-1)) }

// Directory is the list of worker slots. The supervisor alone assigns, marks and
// clears; a worker alone reports phase, heartbeat and gauges of its own slot.
//
// The incarnation and both flags share one word, so a look at it is a verdict.
type Directory struct {
	view  mem.View
	words []uint64 // of view
	slots int
	kept  kept // in the supervisor: what it wrote
}

func (d *Directory) init(v mem.View, slots int) {
	d.view, d.words, d.slots = v, v.Words(), slots
}

func (d *Directory) at(slot SlotID) int {
	if int(slot) >= d.slots {
		panic(fmt.Sprintf("shm: slot %d of %d", slot, d.slots))
	}
	return directoryHead + int(slot)*recordBytes
}

// Slots returns the number of slots.
func (d *Directory) Slots() int { return d.slots }

// Version changes whenever the supervisor changed a record. A reader that caches
// what it found takes the version before it reads.
func (d *Directory) Version() uint64 { return d.view.Load64(directoryVersion) }

func (d *Directory) changed() { d.view.Add64(directoryVersion, 1) }

// Assign gives slot to a process that is about to be started. It counts as alive
// from here on. Supervisor only.
//
// Preconditions: slot is in the geometry and its last owner was reclaimed; inc
// is not 0 and was never used before.
func (d *Directory) Assign(slot SlotID, inc Incarnation, gen Generation, listeners uint64) {
	at := d.at(slot)
	if inc == 0 {
		panic("shm: incarnation 0")
	}
	d.blank(at)
	d.put(at+recordGeneration, uint64(gen))
	d.put(at+recordListeners, listeners)
	d.view.Store64(at+recordPhase, uint64(PhaseStarting))
	// Everything above is seen by whoever sees this word (Record).
	d.put(at+recordIdentity, seal(uint64(inc)|identityAlive))
	d.changed()
}

// Restore puts the record of a process that runs, by the account of a supervisor
// before this one, and leaves alone what the process itself reports. Supervisor
// only.
//
// Preconditions: slot is in the geometry and inc is not 0.
func (d *Directory) Restore(slot SlotID, inc Incarnation, gen Generation, pid int, listeners uint64, serving bool) {
	at := d.at(slot)
	if inc == 0 {
		panic("shm: incarnation 0")
	}
	d.put(at+recordGeneration, uint64(gen))
	d.put(at+recordPID, uint64(pid))
	d.put(at+recordListeners, listeners)
	identity := uint64(inc) | identityAlive
	if serving {
		identity |= identityServing
	}
	d.put(at+recordIdentity, seal(identity))
	d.changed()
}

func (d *Directory) blank(at int) {
	for _, off := range [...]int{recordIdentity, recordGeneration, recordPID, recordListeners} {
		d.put(at+off, 0)
	}
	for _, off := range [...]int{recordPhase, recordHeartbeat, recordConnections, recordConnections + 8} {
		d.view.Store64(at+off, 0)
	}
}

// put stores a word that the supervisor alone writes.
func (d *Directory) put(off int, w uint64) { d.kept.put(d.view, off, w) }

// SetPID notes the process ID, once it is known. For display only: nothing is
// ever decided by it. Supervisor only.
func (d *Directory) SetPID(slot SlotID, pid int) {
	d.put(d.at(slot)+recordPID, uint64(pid))
	d.changed()
}

// SetListeners replaces the set of listeners that slot serves. Supervisor only.
func (d *Directory) SetListeners(slot SlotID, listeners uint64) {
	d.put(d.at(slot)+recordListeners, listeners)
	d.changed()
}

// SetServing says whether new connections may be sent to slot. A dead slot never
// serves. Supervisor only.
func (d *Directory) SetServing(slot SlotID, serving bool) {
	at := d.at(slot) + recordIdentity
	w := d.kept.get(d.view, at)
	alive := w & identityAlive
	w = uint64(uint32(w)) | alive
	if serving && alive != 0 {
		w |= identityServing
	}
	d.put(at, seal(w))
	d.changed()
}

// MarkDead says that the process in slot is gone for good. From here on its
// table entries are free for anybody. Supervisor only.
//
// Preconditions: the process is proven dead.
func (d *Directory) MarkDead(slot SlotID) {
	at := d.at(slot) + recordIdentity
	d.put(at, seal(uint64(uint32(d.kept.get(d.view, at)))))
	d.changed()
}

// Clear empties the record. Supervisor only.
//
// Preconditions: the slot is dead or was never used.
func (d *Directory) Clear(slot SlotID) {
	d.blank(d.at(slot))
	d.changed()
}

// Alive reports whether o is a live process. One load; false for a slot out of
// range. Safe on values that nobody vouches for.
func (d *Directory) Alive(o Owner) bool {
	w := d.identity(uint32(o.Slot))
	return o.Incarnation != 0 && uint32(w) == uint32(o.Incarnation) && w&identityAlive != 0 && sound(w)
}

// AliveRoute returns the live process in slot if the low 24 bits of its
// incarnation are low24. One load; false for a slot out of range. Safe on values
// that nobody vouches for.
func (d *Directory) AliveRoute(slot uint16, low24 uint32) (Owner, bool) {
	w := d.identity(uint32(slot))
	if w&identityAlive == 0 || uint32(w)&lowIncarnation != low24 || uint32(w) == 0 || !sound(w) {
		return Owner{}, false
	}
	return Owner{Slot: SlotID(slot), Incarnation: Incarnation(w)}, true
}

// Damaged reports whether the identity of slot makes no sense. Then nobody can
// tell whether its process is alive, until the supervisor has put it right; see
// [Segment.Repair]. False for a slot out of range. Safe on values that nobody
// vouches for.
func (d *Directory) Damaged(slot uint16) bool { return !sound(d.identity(uint32(slot))) }

// identity loads the identity word of slot, 0 when there is no such slot.
func (d *Directory) identity(slot uint32) uint64 {
	if i := directoryHead/8 + uint(slot)*(recordBytes/8); slot < uint32(d.slots) && i < uint(len(d.words)) {
		return atomic.LoadUint64(&d.words[i])
	}
	return 0
}

// Record returns a snapshot of slot. Its fields belong to one incarnation.
//
// Preconditions: slot is in the geometry.
func (d *Directory) Record(slot SlotID) Record {
	at := d.at(slot)
	for range 8 {
		w := d.view.Load64(at + recordIdentity)
		r := Record{
			Incarnation: Incarnation(w),
			Generation:  Generation(d.view.Load64(at + recordGeneration)),
			PID:         int(d.view.Load64(at + recordPID)),
			Phase:       Phase(min(d.view.Load64(at+recordPhase), 255)),
			Listeners:   d.view.Load64(at + recordListeners),
			Serving:     w&identityServing != 0 && sound(w),
			Alive:       w&identityAlive != 0 && sound(w),
			Heartbeat:   int64(d.view.Load64(at + recordHeartbeat)),
			QUICConns:   d.view.Load64(at + recordConnections),
			TCPConns:    d.view.Load64(at + recordConnections + 8),
		}
		if d.view.Load64(at+recordIdentity) == w {
			return r
		}
	}
	return Record{} // it never held still: nobody who can be relied on
}

// SetPhase reports how far the worker in slot is. That worker only.
func (d *Directory) SetPhase(slot SlotID, p Phase) {
	d.view.Store64(d.at(slot)+recordPhase, uint64(p))
}

// Beat reports that the worker in slot was alive at monoNanos (CLOCK_MONOTONIC).
// That worker only.
func (d *Directory) Beat(slot SlotID, monoNanos int64) {
	d.view.Store64(d.at(slot)+recordHeartbeat, uint64(monoNanos))
}

// SetConns reports the open connections of the worker in slot. That worker only.
func (d *Directory) SetConns(slot SlotID, quic, tcp uint64) {
	at := d.at(slot)
	d.view.Store64(at+recordConnections, quic)
	d.view.Store64(at+recordConnections+8, tcp)
}
