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

	hook func(failpoint) // tests die or stop here; nil otherwise

	// What inserts write is kept off the cache line that look-ups read.
	_       [128]byte
	claims  atomic.Uint32 // of this process, to number them
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
	key    struct{ w0, w1, w2 uint64 } // as connid.ID.Words gives them
)

func keyOf(id connid.ID) key {
	w := id.Words()
	return key{w[0], w[1], w[2]}
}

// spot is everything that follows from a connection ID and the secret.
type spot struct {
	key   key
	tag   meta // in its place
	b     [2]uint64
	first uint // entry of a bucket where the key is put if there is a choice
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
func (t *Table) Hash(id connid.ID) uint64 { return t.hash(keyOf(id)) }

func (t *Table) hash(k key) uint64 { return t.key.sum(k.w0, k.w1, k.w2) }

// The bits of a hash: 63-52 tag, 51-49 first entry to try, 25-0 first bucket,
// 51-26 second bucket. Buckets of a hash differ.
func tagOf(h uint64) meta   { return meta(h >> 52 << 16) }
func firstOf(h uint64) uint { return uint(h>>49) % bucketEntries }

func (t *Table) pair(h uint64) (b0, b1 uint64) {
	b0, b1 = h&t.mask, h>>26&t.mask
	if b1 == b0 {
		b1 ^= 1
	}
	return b0, b1
}

func (t *Table) spot(id connid.ID) spot {
	k := keyOf(id)
	h := t.hash(k)
	b0, b1 := t.pair(h)
	return spot{key: k, tag: tagOf(h), b: [2]uint64{b0, b1}, first: firstOf(h)}
}

// bucket returns bucket i, which is at most mask.
func (t *Table) bucket(i uint64) *bucket {
	return (*bucket)(t.buckets[i*(bucketBytes/8):])
}

func (b *bucket) meta(i uint) meta { return meta(atomic.LoadUint64(&b[i%bucketEntries])) }

func (b *bucket) cas(i uint, old, m meta) bool {
	return atomic.CompareAndSwapUint64(&b[i%bucketEntries], uint64(old), uint64(m))
}

func (b *bucket) key(i uint) key {
	w := (*[3]uint64)(b[bucketKeys/8+i%bucketEntries*3:])
	return key{atomic.LoadUint64(&w[0]), atomic.LoadUint64(&w[1]), atomic.LoadUint64(&w[2])}
}

// swapKey replaces word w of key i.
func (b *bucket) swapKey(i uint, w int, old, k uint64) bool {
	return atomic.CompareAndSwapUint64(&b[bucketKeys/8+i%bucketEntries*3+uint(w)], old, k)
}

// Lookup returns the live owner of id and notes that the entry was used at now.
// It takes no lock and does not allocate.
//
// Most keys are in the entry where they would be put first; that one is tried
// before all others, and its key is fetched along with its meta word.
func (t *Table) Lookup(id connid.ID, now Epoch) (Hit, bool) {
	k := keyOf(id)
	h := t.hash(k)
	b, i := t.bucket(h&t.mask), firstOf(h)
	m := b.meta(i)
	if m&(metaCommitted|metaTag) == tagOf(h)|metaCommitted && b.key(i) == k {
		if hit, ok := t.hit(b, i, m, now); ok {
			return hit, true
		}
	}
	return t.probe(k, h, now)
}

// probe is the whole of a look-up, for keys that are not where they were put
// first.
func (t *Table) probe(k key, h uint64, now Epoch) (Hit, bool) {
	b0, b1 := t.pair(h)
	want := tagOf(h) | metaCommitted
	for _, b := range [...]*bucket{t.bucket(b0), t.bucket(b1)} {
		for i := range uint(bucketEntries) {
			m := b.meta(i)
			if m&(metaCommitted|metaTag) != want || b.key(i) != k {
				continue
			}
			if hit, ok := t.hit(b, i, m, now); ok {
				return hit, true
			}
		}
	}
	return Hit{}, false
}

// hit turns an entry whose key matched into what a look-up returns, if it still
// holds m, its epoch aside: the key may have been replaced while it was read, and
// then the meta word was, too.
func (t *Table) hit(b *bucket, i uint, m meta, now Epoch) (Hit, bool) {
	if (b.meta(i)^m)&^metaEpoch != 0 {
		return Hit{}, false
	}
	o, ok := t.dir.AliveRoute(m.slot(), m.low())
	if !ok {
		return Hit{}, false
	}
	if m.epoch() != now {
		t.refresh(b, i, m, now)
	}
	return Hit{Owner: o, Kind: m.kind()}, true
}

// refresh stores the epoch if it moved on, which is once a second at most, so
// that the line stays shared between its readers. A reader whose clock lags by a
// second does not set it back. If the entry changed meanwhile, somebody else has
// said something newer.
func (t *Table) refresh(b *bucket, i uint, m meta, now Epoch) {
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
func (t *Table) find(s *spot, wanted func(meta) bool) (*bucket, uint, meta, bool) {
	for _, at := range s.b {
		b := t.bucket(at)
		for i := range uint(bucketEntries) {
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
