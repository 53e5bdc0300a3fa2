package shm

import (
	"fmt"
	"math/bits"
)

// Version of the layout. See docs/shm-abi.md for its history.
const (
	ABIMajor = 1
	ABIMinor = 1
)

// Header: first page of the segment. Written once, before the segment is
// shared, by the supervisor; headerMagic is stored last.
const (
	headerMagic    = 0  // u64
	headerMajor    = 8  // u32
	headerMinor    = 12 // u32
	headerSize     = 16 // u64, bytes of the whole segment
	headerSlots    = 24 // u32
	headerLanes    = 28 // u32
	headerEntries  = 32 // u64
	headerLane     = 40 // u64, bytes
	headerSecret   = 48 // 16 bytes, key of the table's hash
	headerCreated  = 64 // u64, ns since 1970
	headerChecksum = 72 // u64, CRC-32C of bytes 8 to 71
	headerBytes    = pageBytes
)

// Admission: a page of its own. The choice belongs to the supervisor; the turns
// are moved on by the workers, each on a cache line of its own.
const (
	admissionChoice = 0   // u64: current 32 | canary - current 16 | share 16
	admissionQUIC   = 64  // u64: number 32 | credit 32, of QUIC connections
	admissionTCP    = 128 // u64: the same of TCP connections
	admissionBytes  = pageBytes
)

// Directory: a head, then one record per slot. The first cache line of a record
// belongs to the supervisor, the second to the worker.
const (
	directoryVersion = 0 // u64
	directoryHead    = 128

	recordIdentity    = 0  // u64: check 30 | flags 2 | incarnation 32
	recordGeneration  = 8  // u64
	recordPID         = 16 // u64
	recordListeners   = 24 // u64, one bit per listener ID
	recordPhase       = 64 // u64
	recordHeartbeat   = 72 // u64, CLOCK_MONOTONIC ns
	recordConnections = 80 // u64 QUIC, then u64 TCP
	recordBytes       = 128
)

// Counters: one row per slot, then the supervisor's.
const counterRowBytes = 512

// Table: a head, a map of the pages in use, then the buckets.
const (
	tableUsed             = 0   // u64
	tableHandshaking      = 64  // u64
	tableHandshakeLimit   = 128 // u64, s; 0 = no limit
	tableEstablishedLimit = 136 // u64, s; 0 = no limit
	tableHead             = 256 // then one bit per page of buckets

	bucketEntries = 8
	bucketMeta    = 0  // eight u64
	bucketKeys    = 64 // eight keys
	keyBytes      = 24
	entryBytes    = 8 + keyBytes
	bucketBytes   = bucketEntries * entryBytes
)

// Queues: one region per slot. Package packetqueue lays it out; what it needs
// besides the lanes themselves fits into the allowances.
const (
	queueHeadBytes = 64 << 10
	laneHeadBytes  = 4 << 10
)

const pageBytes = 4096

// Bounds of a geometry.
const (
	maxSlots    = 1 << 10 // slot bits of a table entry
	minEntries  = 2 * bucketEntries
	maxEntries  = 1 << 28
	maxLanes    = 1 << 8
	maxLaneSize = 64 << 20
)

// HandshakeShare is the part of the table that unfinished handshakes may fill,
// as its inverse: one entry of so many.
const HandshakeShare = 8

// Geometry is the set of sizes that is fixed when a segment is created.
type Geometry struct {
	Slots        int // worker slots, 1 to 1024
	TableEntries int // entries of the connection-ID table, a power of two, 16 to 1<<28
	Lanes        int // lanes of each packet queue, 1 to 256
	LaneBytes    int // size of a lane in bytes, a power of two, 4 KiB to 64 MiB
}

// DefaultGeometry returns the sizes that fit a busy host. The segment that they
// give is about 2 GiB of addresses; memory is used only for what was touched.
func DefaultGeometry() Geometry {
	return Geometry{Slots: 256, TableEntries: 1 << 20, Lanes: 32, LaneBytes: 256 << 10}
}

// Validate returns [ErrGeometry], wrapped with the first size that is out of
// bounds, or nil.
func (g Geometry) Validate() error {
	bad := func(what string, v, lo, hi int) error {
		return fmt.Errorf("%w: %s is %d, want %d to %d", ErrGeometry, what, v, lo, hi)
	}
	power := func(v int) bool { return bits.OnesCount(uint(v)) == 1 }
	switch {
	case g.Slots < 1 || g.Slots > maxSlots:
		return bad("worker slots", g.Slots, 1, maxSlots)
	case g.TableEntries < minEntries || g.TableEntries > maxEntries:
		return bad("table entries", g.TableEntries, minEntries, maxEntries)
	case !power(g.TableEntries):
		return fmt.Errorf("%w: table entries is %d, want a power of two", ErrGeometry, g.TableEntries)
	case g.Lanes < 1 || g.Lanes > maxLanes:
		return bad("lanes", g.Lanes, 1, maxLanes)
	case g.LaneBytes < pageBytes || g.LaneBytes > maxLaneSize:
		return bad("lane bytes", g.LaneBytes, pageBytes, maxLaneSize)
	case !power(g.LaneBytes):
		return fmt.Errorf("%w: lane bytes is %d, want a power of two", ErrGeometry, g.LaneBytes)
	}
	return nil
}

// Size returns the bytes of a whole segment.
//
// Preconditions: g is valid.
func (g Geometry) Size() int64 { return int64(g.regions().end) }

// regions is where each region starts. All are multiples of a page.
type regions struct {
	admission, directory, counters, table, buckets, queues, queue, end int
}

func (g Geometry) regions() regions {
	var r regions
	r.admission = headerBytes
	r.directory = r.admission + admissionBytes
	r.counters = r.directory + pages(directoryHead+g.Slots*recordBytes)
	r.table = r.counters + pages((g.Slots+1)*counterRowBytes)
	r.buckets = r.table + pages(tableHead+g.touchedWords()*8)
	r.queues = r.buckets + pages(g.TableEntries*entryBytes)
	r.queue = pages(queueHeadBytes + g.Lanes*(g.LaneBytes+laneHeadBytes))
	r.end = r.queues + g.Slots*r.queue
	return r
}

// touchedWords is the size of the map of used bucket pages, in words.
func (g Geometry) touchedWords() int {
	return (g.TableEntries*entryBytes + pageBytes*64 - 1) / (pageBytes * 64)
}

func pages(n int) int { return (n + pageBytes - 1) &^ (pageBytes - 1) }
