package shm

import (
	"sync/atomic"

	"github.com/holdfast-quic/holdfast/connid"
)

const (
	// maxAttempts bounds the times that a call starts over because another
	// process changed its entry.
	maxAttempts = 64
	// maxRounds bounds the looks at rivals before a commit.
	maxRounds = 1024
	// patience is how often a claim waits for a rival of higher rank to decide
	// before it takes the rival for stopped and removes it.
	patience = 64
)

// Insert makes o the owner of id unless a live process owns it already, and
// returns who owns it now: o, or the winner. Of any number of inserts that race
// for one id exactly one wins. If o owns it already, the entry is refreshed and,
// for [KindEstablished], promoted; it is never demoted.
//
// Entries of the dead and expired ones are taken first, then those of unfinished
// handshakes, the oldest before the others; established entries of the living
// never. Unfinished handshakes together fill at most one entry in
// [HandshakeShare]: beyond that one of them makes room for the next.
//
// Errors: [ErrTableFull], [ErrHandshakesFull], [ErrOwnerDead], [ErrContended].
// No error leaves anything behind.
func (t *Table) Insert(id connid.ID, o Owner, k Kind, now Epoch) (Owner, error) {
	return t.InsertFor(id, o, o, k, now)
}

// InsertFor is Insert by one worker on behalf of another: until the entry is
// made it names by, so that it is freed if by dies on the way; then o.
func (t *Table) InsertFor(id connid.ID, by, o Owner, k Kind, now Epoch) (Owner, error) {
	s := t.spot(id)
	c := claim{table: t, spot: &s, by: by, owner: o, kind: k, now: now}
	if !t.dir.Alive(o) {
		return Owner{}, ErrOwnerDead
	}
	if w, ok := c.present(); ok {
		return w, nil
	}
	if k == KindEstablished {
		w, _, err := c.insert(false)
		return w, err
	}
	// Counted before it is claimed, so that the share is never exceeded.
	over := int64(t.head.Add64(tableHandshaking, 1)) > t.maxShake
	t.reach(fpReserved)
	w, made, err := c.insert(over)
	if !made {
		t.head.Add64(tableHandshaking, ^uint64(0))
	}
	return w, err
}

// claim is one insert on its way.
type claim struct {
	table *Table
	spot  *spot
	by    Owner // who claims
	owner Owner // who has the entry in the end
	kind  Kind
	now   Epoch
}

// insert claims an entry, writes the key and commits. It reports whether the
// entry is a new one.
func (c *claim) insert(over bool) (w Owner, made bool, err error) {
	t := c.table
	for range maxAttempts {
		at, i, old, err := c.choose(over)
		if err != nil {
			return Owner{}, false, err
		}
		t.touch(at)
		b := t.bucket(at)
		mine := stateClaimed<<62 | ownerMeta(c.by) | c.spot.tag | meta(t.claims.Add(1)&claimNumbers)
		if b.cas(i, old, mine) {
			t.uncount(old)
			t.reach(fpClaimed)
			if c.writeKey(b, i, mine) && c.commit(at, i, mine) {
				return c.owner, true, nil
			}
			// Lost the entry, or withdrew for a rival: look who it was.
			b.cas(i, mine, 0)
			b.cas(i, mine|metaTentative, 0)
		}
		if !t.dir.Alive(c.owner) {
			return Owner{}, false, ErrOwnerDead
		}
		if w, ok := c.present(); ok {
			return w, false, nil
		}
	}
	return Owner{}, false, ErrContended
}

// present returns the live owner of the key, if there is one, and frees entries
// with this key of the dead and expired ones. The owner's own entry is refreshed
// and promoted.
func (c *claim) present() (Owner, bool) {
	t := c.table
	mine := ownerMeta(c.owner)
	for range maxAttempts {
		b, i, m, ok := t.find(c.spot, meta.committed)
		if !ok {
			return Owner{}, false
		}
		if m.owner() != mine {
			if w, alive := t.dir.AliveRoute(m.slot(), m.low()); alive && !t.expired(m, c.now) {
				return w, true
			}
			t.free(b, i, m)
			continue
		}
		if c.kind == KindEstablished && m.handshaking() {
			if b.cas(i, m, stateEstablished<<62|mine|c.spot.tag|meta(c.now)) {
				t.reach(fpEstablished)
				t.head.Add64(tableHandshaking, ^uint64(0))
				return c.owner, true
			}
			continue
		}
		t.refresh(b, i, m, c.now)
		return c.owner, true
	}
	return Owner{}, false
}

// choose picks the entry to claim and returns its bucket, place and meta word.
// With over set only entries of handshakes may be taken, so that there are not
// more of them afterwards.
func (c *claim) choose(over bool) (at uint64, i uint, m meta, err error) {
	t := c.table
	var best [2]candidate
	for n, at := range c.spot.b {
		b := t.bucket(at)
		best[n].rank = rankKeep
		for j := range uint(bucketEntries) {
			i := (c.spot.first + j) % bucketEntries
			m := b.meta(i)
			best[n].consider(i, m, t.rank(m, over, c.now), m.epoch().age(c.now))
		}
	}
	n := 0
	if best[1].before(&best[0]) {
		n = 1
	}
	switch {
	case best[n].rank != rankKeep:
		return c.spot.b[n], best[n].place, best[n].meta, nil
	case over:
		return 0, 0, 0, ErrHandshakesFull
	}
	return 0, 0, 0, ErrTableFull
}

// Ranks of entries, the first to be taken first.
const (
	rankFree = iota
	rankGone // dead or expired
	rankHandshaking
	rankKeep
)

func (t *Table) rank(m meta, over bool, now Epoch) int {
	switch {
	case over && !m.handshaking():
		return rankKeep
	case m.state() == stateFree:
		return rankFree
	case t.dead(m) || t.expired(m, now):
		return rankGone
	case m.handshaking():
		return rankHandshaking
	}
	return rankKeep
}

// candidate is the best entry of a bucket so far.
type candidate struct {
	rank  int
	place uint
	age   uint16
	meta  meta
	room  int // entries that are free or gone
}

func (d *candidate) consider(i uint, m meta, rank int, age uint16) {
	if rank <= rankGone {
		d.room++
	}
	if rank < d.rank || rank == d.rank && rank == rankHandshaking && age > d.age {
		d.rank, d.place, d.meta, d.age = rank, i, m, age
	}
}

// ample is the room in a first bucket that makes a look at the second one
// unnecessary.
const ample = 5

// before reports whether the entry of d, in the second bucket, is to be taken
// rather than that of e. While there is ample room keys go to their first bucket,
// where a look-up finds them first. Beyond that the emptier one is filled: that
// is what lets a table without displacement fill up evenly.
func (d *candidate) before(e *candidate) bool {
	switch {
	case e.room >= ample:
		return false
	case d.room != e.room:
		return d.room > e.room
	case d.rank != e.rank:
		return d.rank < e.rank
	}
	return d.rank == rankHandshaking && d.age > e.age
}

// writeKey stores the key into the entry claimed as mine. A process that was
// given up for dead while it was stopped here may find its entry in other hands:
// so it looks at the claim before each word, and a word goes in by
// compare-and-swap against what was there when it was claimed.
func (c *claim) writeKey(b *bucket, i uint, mine meta) bool {
	k, old := c.spot.key, b.key(i)
	for w, step := range [...]struct{ old, new uint64 }{{old.w0, k.w0}, {old.w1, k.w1}, {old.w2, k.w2}} {
		if b.meta(i) != mine || !b.swapKey(i, w, step.old, step.new) {
			return false
		}
		if w == 0 {
			c.table.reach(fpHalfKey)
		}
	}
	c.table.reach(fpKey)
	return true
}

// commit makes the entry visible if no other one has the same key.
//
// First the claim becomes tentative: visible to rivals, not to look-ups. Then
// both buckets are searched. Of two tentative entries each would be found by
// the search of the one that became tentative later, and a search that finds a
// rival never commits; so at most one of them gets through. A tentative rival
// is removed by compare-and-swap, after which its own commit fails. Which of two
// removes the other is settled by their place, so that one of them gets on; a
// rival that outranks the claim and does not move is taken for stopped.
func (c *claim) commit(at uint64, i uint, mine meta) bool {
	t := c.table
	b := t.bucket(at)
	if !b.cas(i, mine, mine|metaTentative) {
		return false
	}
	mine |= metaTentative
	t.reach(fpTentative)
	for round := range maxRounds {
		if b.meta(i) != mine {
			return false
		}
		rival, lost := c.rivals(at, i, round >= patience)
		if lost {
			return false
		}
		if rival {
			continue
		}
		t.reach(fpChecked)
		done := c.kind.state() | ownerMeta(c.owner) | c.spot.tag | meta(c.now)
		if !b.cas(i, mine, done) {
			return false
		}
		t.reach(fpCommitted)
		t.head.Add64(tableUsed, 1)
		return true
	}
	return false
}

// rivals looks for other entries with the key of the claim at (at, i). It frees
// what is dead or expired and tentative ones of lower rank, or with force of any
// rank. It reports whether it saw a rival at all, and whether a live one is
// committed, so that the claim is lost.
func (c *claim) rivals(at uint64, i uint, force bool) (rival, lost bool) {
	t := c.table
	for _, rat := range c.spot.b {
		b := t.bucket(rat)
		for ri := range uint(bucketEntries) {
			m := b.meta(ri)
			if m&metaTag != c.spot.tag || rat == at && ri == i || !m.committed() && !m.tentative() || b.key(ri) != c.spot.key {
				continue
			}
			rival = true
			gone := t.dead(m) || t.expired(m, c.now)
			switch {
			case m.committed() && !gone:
				return true, true
			case gone || force || rat > at || rat == at && ri > i:
				t.free(b, ri, m)
			}
		}
	}
	return rival, false
}

// free empties an entry if it still holds m.
func (t *Table) free(b *bucket, i uint, m meta) {
	if b.cas(i, m, 0) {
		t.uncount(m)
	}
}

// touch notes that the page of bucket at is in use, before it is.
func (t *Table) touch(at uint64) {
	const perPage = pageBytes / bucketBytes
	w, bit := &t.touched[at/perPage/64], uint64(1)<<(at/perPage%64)
	if atomic.LoadUint64(w)&bit == 0 {
		atomic.OrUint64(w, bit)
	}
}

// pageTouched reports whether the page of bucket at was ever in use. Looking at
// one that was not would make the system find memory for it.
func (t *Table) pageTouched(at uint64) bool {
	const perPage = pageBytes / bucketBytes
	return atomic.LoadUint64(&t.touched[at/perPage/64])>>(at/perPage%64)&1 != 0
}
