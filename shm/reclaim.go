package shm

// Limits are the ages at which an entry that was not used is given up, in
// seconds, at most 65475 (18 hours). 0: never.
type Limits struct {
	Handshake   Epoch
	Established Epoch // more than the longest idle timeout of a connection
}

// RemoveAll frees every entry of o and returns how many this call freed.
// Several callers may do so at once.
//
// Preconditions: o is dead and marked so in the directory, or the caller is o
// and has no Insert in progress.
func (t *Table) RemoveAll(o Owner) int {
	freed := 0
	mine, ok := t.mine(o)
	if !ok {
		return 0
	}
	t.each(0, t.entries, func(_ uint64, b *bucket, i uint) {
		for m := b.meta(i); m.state() != stateFree && m.owner() == mine; m = b.meta(i) {
			t.reach(fpSweep)
			if b.cas(i, m, 0) {
				t.reach(fpSwept)
				t.uncount(m)
				freed++
				return
			}
		}
	})
	return freed
}

// Reclaim is RemoveAll by the name that a supervisor uses for a dead worker.
func (t *Table) Reclaim(o Owner) int { return t.RemoveAll(o) }

// Sweep looks at n entries from entry from on, frees those of dead owners and
// those that were not used within the limits, and returns where to go on (0 once
// it is round) and how many it freed. The limits are kept in the segment, where
// inserters go by them too. Only the supervisor sweeps.
//
// A whole round, called with the next of one call as the from of the following,
// also sets Usage right, which a killed process may have left a little off.
//
// An epoch comes round after 18 hours, so a round has to be shorter than that.
func (t *Table) Sweep(from, n int, now Epoch, limits Limits) (next, freed int) {
	t.sweepMu.Lock()
	defer t.sweepMu.Unlock()
	t.setLimits(limits)
	if from < 0 || from >= t.entries {
		from = 0
	}
	from &^= bucketEntries - 1
	next = min(from+max(n, bucketEntries), t.entries)
	next &^= bucketEntries - 1
	p := &t.sweep
	p.begin(t, from)
	t.each(from, next, func(_ uint64, b *bucket, i uint) {
		m := b.meta(i)
		if m.state() == stateFree {
			return
		}
		if t.dead(m) || t.expired(m, now) {
			t.reach(fpSweep)
			if b.cas(i, m, 0) {
				t.reach(fpSwept)
				t.uncount(m)
				p.own.add(m)
				freed++
				return
			}
			m = b.meta(i)
		}
		p.seen.add(m)
	})
	p.next = next
	if next == t.entries {
		p.end(t)
		next = 0
	}
	return next, freed
}

func (t *Table) setLimits(l Limits) {
	if h := uint64(min(l.Handshake, maxAge)); t.head.Load64(tableHandshakeLimit) != h {
		t.head.Store64(tableHandshakeLimit, h)
	}
	if e := uint64(min(l.Established, maxAge)); t.head.Load64(tableEstablishedLimit) != e {
		t.head.Store64(tableEstablishedLimit, e)
	}
}

// expired reports whether a committed entry was not used within its limit.
func (t *Table) expired(m meta, now Epoch) bool {
	if !m.committed() {
		return false
	}
	off := tableEstablishedLimit
	if m.handshaking() {
		off = tableHandshakeLimit
	}
	limit := t.head.Load64(off)
	return limit != 0 && uint64(m.epoch().age(now)) > limit
}

// each calls fn for every entry from from up to to on pages that were ever in
// use. Both are multiples of bucketEntries.
func (t *Table) each(from, to int, fn func(at uint64, b *bucket, i uint)) {
	const perPage = pageBytes / bucketBytes
	for at := uint64(from / bucketEntries); at < uint64(to/bucketEntries); {
		if !t.pageTouched(at) {
			at = (at/perPage + 1) * perPage
			continue
		}
		b := t.bucket(at)
		for i := range uint(bucketEntries) {
			fn(at, b, i)
		}
		at++
	}
}

// tally is a number of entries by kind.
type tally struct{ used, shake int64 }

func (n *tally) add(m meta) {
	if m.committed() {
		n.used++
	}
	if m.handshaking() {
		n.shake++
	}
}

// sweepPass is one round of the sweep.
type sweepPass struct {
	valid bool // it looked at every entry so far
	next  int
	start tally // what the shared counts said when the round began
	own   tally // entries that the sweep itself freed
	seen  tally // entries that it left
}

func (p *sweepPass) begin(t *Table, from int) {
	if from == 0 {
		*p = sweepPass{valid: true, start: t.counts()}
		return
	}
	p.valid = p.valid && p.next == from
}

// end moves the shared counts by what they were off. Entries that others made or
// freed during the round were seen or not seen with equal chance, so what was
// seen is held against the middle of the counts before and after, less what the
// sweep freed; in a quiet table the result is exact.
func (p *sweepPass) end(t *Table) {
	if p.valid {
		now := t.counts()
		correct := func(off int, start, now, seen int64) {
			if middle := start + (now-start)/2; seen != middle {
				t.head.Add64(off, uint64(seen-middle))
			}
		}
		correct(tableUsed, p.start.used-p.own.used, now.used, p.seen.used)
		correct(tableHandshaking, p.start.shake-p.own.shake, now.shake, p.seen.shake)
	}
	p.valid = false
}

// counts returns the shared counts as they are.
func (t *Table) counts() tally {
	return tally{int64(t.head.Load64(tableUsed)), int64(t.head.Load64(tableHandshaking))}
}
