package packetqueue

import (
	"fmt"
	"math/rand/v2"

	"github.com/holdfast-quic/holdfast/internal/mem"
)

// Limits of a queue's geometry.
const (
	Channels     = 64      // channels of a queue, numbered from 0
	MaxLanes     = 256     // lanes of a queue
	MinLaneBytes = 1 << 12 // bytes of a lane, a power of two
	MaxLaneBytes = 1 << 26
)

// The region: header, channel blocks, lane control blocks, then the lanes' bytes
// from a page boundary. docs/queue-abi.md has the same numbers, and a test
// compares the two.
const (
	magic         = 0x4555455551444c48 // "HLDQUEUE" in little endian
	layoutVersion = 1

	offMagic     = 0  // u64, written last
	offVersion   = 8  // u32
	offLanes     = 12 // u32
	offLaneBytes = 16 // u64
	headerBytes  = 128

	offChannels  = headerBytes
	channelBytes = 64
	chanArmed    = 0 // u64
	chanDirty    = 8 // 4 × u64, one bit a lane

	offControls  = offChannels + Channels*channelBytes
	controlBytes = 384
	laneOwner    = 0   // u64
	laneTail     = 128 // u64, two lines away: the prefetcher fetches pairs
	laneHead     = 256 // u64

	dataAlign  = 4096
	dirtyWords = MaxLanes / 64
)

// queue is a region whose geometry has been read once and validated.
type queue struct {
	view  mem.View
	lanes int
	size  uint64 // bytes of a lane
}

func checkGeometry(lanes int, laneBytes uint64) error {
	if lanes < 1 || lanes > MaxLanes || laneBytes < MinLaneBytes || laneBytes > MaxLaneBytes || laneBytes&(laneBytes-1) != 0 {
		return fmt.Errorf("%w: %d lanes of %d bytes", ErrGeometry, lanes, laneBytes)
	}
	return nil
}

func offData(lanes int) int {
	return (offControls + lanes*controlBytes + dataAlign - 1) &^ (dataAlign - 1)
}

// Size returns how many bytes a queue of that geometry needs, or 0 when the
// geometry is out of range: lanes 1 to MaxLanes, laneBytes a power of two from
// MinLaneBytes to MaxLaneBytes. To carry payloads up to MaxPayload a lane needs
// 256 KiB.
func Size(lanes, laneBytes int) int {
	if laneBytes < 0 || checkGeometry(lanes, uint64(laneBytes)) != nil {
		return 0
	}
	return offData(lanes) + lanes*laneBytes
}

// Format makes an empty queue in region, whatever it held before. Only pages of
// the control blocks are touched. ErrGeometry when the region is too small.
//
// Preconditions: the region starts on a 64-byte boundary (8 is enough to be
// correct); no consumer is using it. A producer that still holds a lane from an
// earlier life of the region is fenced: its next Push returns ErrClosed.
func Format(region []byte, lanes, laneBytes int) error {
	need := Size(lanes, laneBytes)
	if need == 0 || len(region) < need {
		return fmt.Errorf("%w: %d lanes of %d bytes in %d bytes", ErrGeometry, lanes, laneBytes, len(region))
	}
	view, err := mem.NewView(region)
	if err != nil {
		return fmt.Errorf("format queue: %w", err)
	}
	q := queue{view: view, lanes: lanes, size: uint64(laneBytes)}
	view.Store64(offMagic, 0)
	putGeometry(view, lanes, laneBytes)
	for i := range lanes {
		// Random cursors and lease counts: what a stale producer of the region's
		// former life expects to find is never there, so its commit fails.
		start := rand.Uint64() &^ (q.size - 1)
		c := q.control(i)
		c.Store64(laneOwner, uint64(owner(rand.Uint64()).free()))
		c.Store64(laneTail, start)
		c.Store64(laneHead, start)
	}
	q.clearChannels()
	view.Store64(offMagic, magic) // last: an attacher that sees it sees the rest
	return nil
}

func putGeometry(view mem.View, lanes, laneBytes int) {
	view.Store32(offVersion, layoutVersion)
	view.Store32(offLanes, uint32(lanes))
	view.Store64(offLaneBytes, uint64(laneBytes))
}

// Repair writes the header of a queue of that geometry again where it is not what
// Format wrote, and reports whether it had to: processes that open the queue
// would not take it for one. Everything else that is damaged mends itself, or is
// freed by ReleaseStale.
//
// Preconditions: Format made the queue, with this geometry.
func Repair(region []byte, lanes, laneBytes int) bool {
	q, err := open(region)
	if err == nil && q.lanes == lanes && q.size == uint64(laneBytes) {
		return false
	}
	view, err := mem.NewView(region)
	if need := Size(lanes, laneBytes); err != nil || need == 0 || view.Len() < need {
		return false
	}
	putGeometry(view, lanes, laneBytes)
	view.Store64(offMagic, magic)
	return true
}

// open validates the header of region. The region may be written to by others
// at the same time: the geometry is read once and kept.
func open(region []byte) (queue, error) {
	view, err := mem.NewView(region)
	if err != nil {
		return queue{}, fmt.Errorf("open queue: %w", err)
	}
	if view.Len() < headerBytes || view.Load64(offMagic) != magic || view.Load32(offVersion) != layoutVersion {
		return queue{}, ErrNotQueue
	}
	lanes, laneBytes := int(view.Load32(offLanes)), view.Load64(offLaneBytes)
	if err := checkGeometry(lanes, laneBytes); err != nil {
		return queue{}, err
	}
	if need := Size(lanes, int(laneBytes)); need > view.Len() {
		return queue{}, fmt.Errorf("%w: %d bytes, %d needed", ErrGeometry, view.Len(), need)
	}
	return queue{view: view, lanes: lanes, size: laneBytes}, nil
}

func (q *queue) control(i int) mem.View {
	return q.view.Sub(offControls+i*controlBytes, controlBytes)
}

func (q *queue) data(i int) mem.View {
	return q.view.Sub(offData(q.lanes)+i*int(q.size), int(q.size))
}

func (q *queue) channel(c uint8) mem.View {
	return q.view.Sub(offChannels+int(c)*channelBytes, channelBytes)
}

func (q *queue) clearChannels() {
	for c := range uint8(Channels) {
		ch := q.channel(c)
		for off := 0; off < channelBytes; off += 8 {
			ch.Store64(off, 0)
		}
	}
}

// all returns the set of every lane of the queue.
func (q *queue) all() laneSet {
	var s laneSet
	for i := range q.lanes {
		s.add(i)
	}
	return s
}
