package shm

import (
	"fmt"

	"github.com/holdfast-quic/holdfast/connid"
)

// maxFaults bounds what Check lists.
const maxFaults = 100

// Check verifies every invariant of header, directory, admission and table, and
// returns the faults, at most a hundred. It may run while others work: what is
// in motion is looked at again before it is called a fault. Entries of the dead
// are faults, so it is to be called after they were reclaimed. It does not look
// into queues.
func (s *Segment) Check() []error {
	var c checker
	h, err := readHeader(s.view.Bytes(0, headerBytes), int64(len(s.region)))
	switch {
	case err != nil:
		c.fault("header: %w", err)
	case h != s.header:
		c.fault("header: changed since it was opened")
	}
	c.directory(&s.directory)
	c.admission(&s.admission)
	c.table(&s.table)
	return c.faults
}

type checker struct{ faults []error }

func (c *checker) fault(format string, args ...any) {
	if len(c.faults) < maxFaults {
		c.faults = append(c.faults, fmt.Errorf(format, args...))
	}
}

func (c *checker) directory(d *Directory) {
	seen := make(map[Incarnation]SlotID)
	for i := range d.slots {
		slot := SlotID(i)
		r := d.Record(slot)
		if r.Alive && r.Incarnation == 0 {
			c.fault("directory: slot %d: alive without an incarnation", slot)
		}
		if r.Serving && !r.Alive {
			c.fault("directory: slot %d: serving but dead", slot)
		}
		if d.Damaged(uint16(slot)) {
			c.fault("directory: slot %d: identity is damaged", slot)
		}
		if r.Phase > PhaseDone {
			c.fault("directory: slot %d: %v", slot, r.Phase)
		}
		if r.Alive && (r.Generation == 0 || r.Phase == PhaseNone) {
			c.fault("directory: slot %d: alive in generation %d, phase %v", slot, r.Generation, r.Phase)
		}
		if other, twice := seen[r.Incarnation]; twice && r.Incarnation != 0 {
			c.fault("directory: incarnation %d in slots %d and %d", r.Incarnation, other, slot)
		}
		seen[r.Incarnation] = slot
	}
}

func (c *checker) admission(a *Admission) {
	if ch := a.Load(); ch.Canary != 0 && ch.Current == 0 {
		c.fault("admission: canary generation %d without a current one", ch.Canary)
	}
}

// place is where an entry was seen.
type place struct {
	bucket uint64
	entry  uint
	meta   meta
}

func (c *checker) table(t *Table) {
	seen := make(map[key]place)
	shakes := int64(0)
	t.each(0, t.entries, func(at uint64, b *bucket, i uint) {
		m, k := b.meta(i), b.key(i)
		if m.state() == stateFree || b.meta(i) != m {
			return
		}
		if t.dead(m) && b.meta(i) == m {
			c.fault("table: bucket %d entry %d: owner %d#%d is dead", at, i, m.slot(), m.low())
			return
		}
		if !m.committed() {
			return // its key is being written
		}
		if m.handshaking() {
			shakes++
		}
		if _, ok := connid.FromWords([3]uint64{k.w0, k.w1, k.w2}); !ok {
			c.fault("table: bucket %d entry %d: key is no connection ID", at, i)
			return
		}
		h := t.hash(k)
		if b0, b1 := t.pair(h); at != b0 && at != b1 || m&metaTag != tagOf(h) {
			c.fault("table: bucket %d entry %d: key does not belong here", at, i)
		}
		if o, twice := seen[k]; twice && t.holds(o, k) && t.holds(place{at, i, m}, k) {
			c.fault("table: connection ID in bucket %d entry %d and bucket %d entry %d", o.bucket, o.entry, at, i)
		}
		seen[k] = place{at, i, m}
	})
	if shakes > t.maxShake {
		c.fault("table: %d unfinished handshakes, at most %d are allowed", shakes, t.maxShake)
	}
}

// holds reports whether the entry still is what it was seen to be.
func (t *Table) holds(p place, k key) bool {
	b := t.bucket(p.bucket)
	return (b.meta(p.entry)^p.meta)&^metaEpoch == 0 && b.key(p.entry) == k
}
