package shm

import "time"

// Epoch is when an entry was last used: CLOCK_MONOTONIC in whole seconds,
// modulo 2^16.
type Epoch uint16

// EpochAt returns the epoch of a CLOCK_MONOTONIC reading in nanoseconds.
func EpochAt(nanos int64) Epoch { return Epoch(nanos / int64(time.Second)) }

// skew is how far, in seconds, an entry may seem to come from the future
// because its user read the clock a little later than its examiner. An age is
// never more than maxAge, so no limit may be either; a table that is swept at
// least every so often never sees an epoch come round.
const (
	skew   = 60
	maxAge = 1<<16 - 1 - skew
)

// age returns the seconds from e to now.
func (e Epoch) age(now Epoch) uint16 {
	if d := uint16(now - e); d <= maxAge {
		return d
	}
	return 0
}

// Kind is how far the connection behind an entry is.
type Kind uint8

const (
	// KindHandshaking is a connection ID that a client chose, or one of a
	// handshake that is not finished. These entries have a bounded share of the
	// table and are the first to be taken.
	KindHandshaking Kind = 1
	// KindEstablished is a connection ID that its client has proven to know.
	KindEstablished Kind = 2
)

// meta is the word that makes an entry what it is:
//
//	63   62 61    52 51         28 27  16 15      0
//	+-----+--------+-------------+------+---------+
//	|state|  slot  | incarnation | tag  |  epoch  |
//	+-----+--------+-------------+------+---------+
//
// A claimed entry has no epoch yet. It holds the number of the claim there, so
// that no two claims of an entry look alike, and in bit 15 whether the key is
// written (tentative).
type meta uint64

const (
	stateFree        = 0
	stateClaimed     = 1
	stateHandshaking = 2
	stateEstablished = 3

	metaState     = 3 << 62
	metaCommitted = 1 << 63 // set in both states that a look-up may see
	metaTag       = 0xfff << 16
	metaEpoch     = 0xffff
	metaTentative = 1 << 15
	claimNumbers  = 1<<15 - 1

	// metaOwner covers slot and incarnation.
	metaOwner = 1<<62 - 1<<28
)

func (m meta) state() uint64     { return uint64(m) >> 62 }
func (m meta) committed() bool   { return m&metaCommitted != 0 }
func (m meta) tentative() bool   { return m&(metaState|metaTentative) == stateClaimed<<62|metaTentative }
func (m meta) slot() uint16      { return uint16(m>>52) & (maxSlots - 1) }
func (m meta) low() uint32       { return uint32(m>>28) & lowIncarnation }
func (m meta) epoch() Epoch      { return Epoch(m) }
func (m meta) owner() meta       { return m & metaOwner }
func (m meta) kind() Kind        { return Kind(m.state() - 1) }
func (m meta) at(e Epoch) meta   { return m&^metaEpoch | meta(e) }
func (m meta) handshaking() bool { return m.state() == stateHandshaking }

// ownerMeta returns o as the owner bits of an entry.
func ownerMeta(o Owner) meta {
	return meta(o.Slot&(maxSlots-1))<<52 | meta(o.low())<<28
}

// state returns the state of a committed entry of kind k.
func (k Kind) state() meta {
	if k == KindEstablished {
		return stateEstablished << 62
	}
	return stateHandshaking << 62
}
