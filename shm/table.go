package shm

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	"github.com/holdfast-quic/holdfast/connid"
	"github.com/holdfast-quic/holdfast/internal/mem"
)

// Table maps connection IDs to their owners. Any number of processes and
// goroutines use it at once; there is no lock, and one that dies or stops in
// the middle of a call hinders nobody.
//
// A connection ID has two candidate buckets of eight entries and stays where it
// was put. A bucket is a cache line of eight meta words, then eight keys, so a
// look-up touches two lines and the key that it finds.
//
// At most one live owner holds a connection ID. An entry whose owner the
// directory does not list as alive is free, whatever it says.
type Table struct {
	head    mem.View
	touched []uint64 // bit i: page i of the buckets was ever written
	buckets []uint64
	mask    uint64 // number of buckets - 1
	key     sipKey
	dir     *Directory

	entries  int
	maxShake int64 // most entries of unfinished handshakes

	claims atomic.Uint32   // of this process, to number them
	hook   func(failpoint) // tests die or stop here; nil otherwise

	sweepMu sync.Mutex
	sweep   sweepPass
}

// Hit is what a look-up found.
type Hit struct {
	Owner Owner
	Kind  Kind
}

// Usage is how full the table is.
type Usage struct {
	Capacity    int // entries
	Used        int // entries in use, of unfinished handshakes too
	Handshaking int // subset of Used
}

type (
	bucket [bucketBytes / 8]uint64
	key    [3]uint64
)

// spot is everything that follows from a connection ID and the secret.
type spot struct {
	key key
	tag meta // in its place
	b   [2]uint64
}

func (t *Table) init(v mem.View, g Geometry, secret [16]byte, dir *Directory) {
	r := g.regions()
	t.head = v.Sub(0, tableHead)
	t.touched = v.Sub(tableHead, g.touchedWords()*8).Words()
	t.buckets = v.Sub(r.buckets-r.table, g.TableEntries*entryBytes).Words()
	t.mask = uint64(g.TableEntries/bucketEntries - 1)
	t.key = newSipKey(binary.LittleEndian.Uint64(secret[:8]), binary.LittleEndian.Uint64(secret[8:]))
	t.dir = dir
	t.entries = g.TableEntries
	t.maxShake = int64(g.TableEntries / HandshakeShare)
}

// Hash returns the keyed hash of id: SipHash-1-3 of its words. It is the same in
// all processes, and clients cannot predict it.
func (t *Table) Hash(id connid.ID) uint64 {
	w := id.Words()
	return t.key.sum(&w)
}

// split returns the two buckets and the tag of a hash. The buckets differ.
func (t *Table) split(h uint64) (b0, b1 uint64, tag meta) {
	b0 = h & t.mask
	b1 = h >> 26 & t.mask
	if b1 == b0 {
		b1 ^= 1
	}
	return b0, b1, meta(h >> 52 << 16)
}

func (t *Table) spot(id connid.ID) spot {
	s := spot{key: id.Words()}
	s.b[0], s.b[1], s.tag = t.split(t.key.sum((*[3]uint64)(&s.key)))
	return s
}

// bucket returns bucket i, which is at most mask.
func (t *Table) bucket(i uint64) *bucket {
	return (*bucket)(t.buckets[i*(bucketBytes/8):])
}

func (b *bucket) meta(i int) meta { return meta(atomic.LoadUint64(&b[i&(bucketEntries-1)])) }

func (b *bucket) cas(i int, old, m meta) bool {
	return atomic.CompareAndSwapUint64(&b[i&(bucketEntries-1)], uint64(old), uint64(m))
}

func (b *bucket) keyWord(i, w int) *uint64 {
	return &b[bucketKeys/8+(i&(bucketEntries-1))*3+w]
}

func (b *bucket) key(i int) key {
	return key{
		atomic.LoadUint64(b.keyWord(i, 0)),
		atomic.LoadUint64(b.keyWord(i, 1)),
		atomic.LoadUint64(b.keyWord(i, 2)),
	}
}

// Lookup returns the live owner of id and notes that the entry was used at now.
// It takes no lock and does not allocate.
func (t *Table) Lookup(id connid.ID, now Epoch) (Hit, bool) {
	k := key(id.Words())
	b0, b1, tag := t.split(t.key.sum((*[3]uint64)(&k)))
	if hit, ok := t.probe(b0, &k, tag, now); ok {
		return hit, true
	}
	return t.probe(b1, &k, tag, now)
}

func (t *Table) probe(at uint64, k *key, tag meta, now Epoch) (Hit, bool) {
	b := t.bucket(at)
	want := tag | metaCommitted
	for i := range bucketEntries {
		m := meta(atomic.LoadUint64(&b[i]))
		if m&(metaCommitted|metaTag) != want {
			continue
		}
		if b.key(i) != *k {
			continue
		}
		// The key may have been replaced while it was read. Then the meta word
		// was, too: only its epoch may have moved.
		if (meta(atomic.LoadUint64(&b[i]))^m)&^metaEpoch != 0 {
			continue
		}
		o, ok := t.dir.AliveRoute(m.slot(), m.low())
		if !ok {
			continue
		}
		t.refresh(b, i, m, now)
		return Hit{Owner: o, Kind: m.kind()}, true
	}
	return Hit{}, false
}

// refresh stores the epoch if it moved on, which is once a second at most, so
// that the line stays shared between its readers. A reader whose clock lags by a
// second does not set it back. If the entry changed meanwhile, somebody else has
// said something newer.
func (t *Table) refresh(b *bucket, i int, m meta, now Epoch) {
	if d := now - m.epoch(); d != 0 && d != 1<<16-1 {
		b.cas(i, m, m.at(now))
	}
}

// Establish says that the connection behind id has finished its handshake, so
// its entry is o's until it is removed or expires. If there is no entry it makes
// one. Errors: [ErrOwned], and those of Insert.
func (t *Table) Establish(id connid.ID, o Owner, now Epoch) error {
	t.reach(fpEstablish)
	w, err := t.Insert(id, o, KindEstablished, now)
	if err == nil && w != o {
		return ErrOwned
	}
	return err
}

// Remove frees the entry of id if o holds it and says whether it did.
func (t *Table) Remove(id connid.ID, o Owner) bool {
	s := t.spot(id)
	mine, ok := t.mine(o)
	if !ok {
		return false
	}
	for range maxAttempts {
		b, i, m, ok := t.find(&s, func(m meta) bool { return m.committed() && m.owner() == mine })
		if !ok {
			return false
		}
		t.reach(fpRemove)
		if b.cas(i, m, 0) {
			t.reach(fpRemoved)
			t.uncount(m)
			return true
		}
	}
	return false
}

// find returns the first entry with the key of s whose meta word is wanted.
func (t *Table) find(s *spot, wanted func(meta) bool) (*bucket, int, meta, bool) {
	for _, at := range s.b {
		b := t.bucket(at)
		for i := range bucketEntries {
			m := b.meta(i)
			if m&metaTag == s.tag && wanted(m) && b.key(i) == s.key && (b.meta(i)^m)&^metaEpoch == 0 {
				return b, i, m, true
			}
		}
	}
	return nil, 0, 0, false
}

// Usage returns how full the table is. After a process was killed the numbers
// may be off by its last call until a sweep has gone round once.
func (t *Table) Usage() Usage {
	n := t.counts()
	used := min(max(n.used, 0), int64(t.entries))
	shake := min(max(n.shake, 0), used)
	return Usage{Capacity: t.entries, Used: int(used), Handshaking: int(shake)}
}

// uncount takes an entry that held m out of the counts.
func (t *Table) uncount(m meta) {
	if m.committed() {
		t.head.Add64(tableUsed, ^uint64(0))
	}
	if m.handshaking() {
		t.head.Add64(tableHandshaking, ^uint64(0))
	}
}

// mine returns the owner bits of o's entries, if it can have any.
func (t *Table) mine(o Owner) (meta, bool) {
	return ownerMeta(o), o.Incarnation != 0 && int(o.Slot) < t.dir.slots
}

// dead reports whether the entry is of a process that is not alive.
func (t *Table) dead(m meta) bool {
	_, ok := t.dir.AliveRoute(m.slot(), m.low())
	return !ok
}
