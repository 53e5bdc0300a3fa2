package shm

import (
	"fmt"
	"hash/crc32"
	"time"

	"github.com/holdfast-quic/holdfast/internal/mem"
)

// magic is "HOLDFAST" read as a little-endian word. A host of the other byte
// order would see another number and refuse.
const magic = 0x54534146_444c4f48

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Format writes a header for g into region, which must be g.Size() bytes of
// zeros, aligned to 8. Only the first page is touched: zero is the empty state
// of everything else. secret keys the hash of the table; it must not be known
// to clients, who choose some of the connection IDs.
//
// The magic is stored last, so a region whose creator died is no segment.
func Format(region []byte, g Geometry, secret [16]byte) error {
	if err := g.Validate(); err != nil {
		return err
	}
	if int64(len(region)) != g.Size() {
		return fmt.Errorf("%w: region has %d bytes, want %d", ErrGeometry, len(region), g.Size())
	}
	v, err := mem.NewView(region)
	if err != nil {
		return fmt.Errorf("format segment: %w", err)
	}
	v.Store64(headerMagic, 0)
	v.Store32(headerMajor, ABIMajor)
	v.Store32(headerMinor, ABIMinor)
	v.Store64(headerSize, uint64(len(region)))
	v.Store32(headerSlots, uint32(g.Slots))
	v.Store32(headerLanes, uint32(g.Lanes))
	v.Store64(headerEntries, uint64(g.TableEntries))
	v.Store64(headerLane, uint64(g.LaneBytes))
	copy(v.Bytes(headerSecret, len(secret)), secret[:])
	v.Store64(headerCreated, uint64(time.Now().UnixNano()))
	v.Store64(headerChecksum, headerSum(v.Bytes(0, headerBytes)))
	v.Store64(headerMagic, magic) // pairs with the first load in readHeader
	return nil
}

func headerSum(h []byte) uint64 {
	return uint64(crc32.Checksum(h[headerMajor:headerChecksum], castagnoli))
}

// header is a checked copy of the segment's first page.
type header struct {
	geometry Geometry
	secret   [16]byte
	created  time.Time
}

// readHeader copies the header out of page, its first headerBytes bytes, and
// checks it against size, the true size of the segment.
func readHeader(page []byte, size int64) (header, error) {
	if len(page) < headerBytes {
		return header{}, fmt.Errorf("%w: only %d bytes", ErrNotSegment, len(page))
	}
	v, err := mem.NewView(page[:headerBytes])
	if err != nil {
		return header{}, err
	}
	if v.Load64(headerMagic) != magic {
		return header{}, fmt.Errorf("%w: no magic number", ErrNotSegment)
	}
	if major, minor := v.Load32(headerMajor), v.Load32(headerMinor); major != ABIMajor {
		return header{}, fmt.Errorf("%w: %d.%d, this build has %d.%d", ErrABIVersion, major, minor, ABIMajor, ABIMinor)
	}
	if v.Load64(headerChecksum) != headerSum(page) {
		return header{}, fmt.Errorf("%w: header checksum is wrong", ErrNotSegment)
	}
	entries, lane := v.Load64(headerEntries), v.Load64(headerLane)
	if entries > maxEntries || lane > maxLaneSize {
		return header{}, fmt.Errorf("%w: %d table entries, %d lane bytes", ErrGeometry, entries, lane)
	}
	h := header{
		geometry: Geometry{
			Slots:        int(v.Load32(headerSlots)),
			TableEntries: int(entries),
			Lanes:        int(v.Load32(headerLanes)),
			LaneBytes:    int(lane),
		},
		created: time.Unix(0, int64(v.Load64(headerCreated))),
	}
	copy(h.secret[:], v.Bytes(headerSecret, len(h.secret)))
	if err := h.geometry.Validate(); err != nil {
		return header{}, err
	}
	if want := h.geometry.Size(); size != want || v.Load64(headerSize) != uint64(want) {
		return header{}, fmt.Errorf("%w: segment has %d bytes, its geometry needs %d", ErrGeometry, size, want)
	}
	return h, nil
}
