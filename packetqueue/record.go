package packetqueue

import (
	"encoding/binary"

	"github.com/holdfast-quic/holdfast/internal/mem"
)

// MaxPayload is the longest payload of a record, in bytes: what one UDP receive
// with segments merged by the kernel can return.
const MaxPayload = 1<<16 - 1

// Endpoint is an IP address and UDP port as a comparable value.
type Endpoint struct {
	Addr   [16]byte // IPv4 in the first four bytes, the rest zero
	Zone   uint32   // interface index of a scoped IPv6 address, else 0
	Port   uint16
	Family uint8 // 4, 6, or 0 when unknown
}

// Record is one UDP datagram, or a run of datagrams of one size from one sender,
// together with all that its receiver would have learnt from the socket.
type Record struct {
	Target  uint32   // incarnation of the worker that is meant to get it
	Remote  Endpoint // who sent it
	Local   Endpoint // the address it was sent to
	IfIndex uint32   // interface it came in by, 0 when unknown
	ECN     uint8    // the two bits of RFC 3168
	Pushed  int64    // time of the push, CLOCK_MONOTONIC in nanoseconds
	Segment uint16   // size of each datagram but the last, 0 when Payload is a single one
	Payload []byte   // at most MaxPayload bytes
}

// Packets returns how many datagrams the record carries. Pending and Reset count
// in the same unit.
func (r *Record) Packets() int { return packets(len(r.Payload), int(r.Segment)) }

func packets(n, segment int) int {
	if segment == 0 || n == 0 {
		return 1
	}
	return (n + segment - 1) / segment
}

// A record is a header of nine words in host byte order, then the payload,
// padded to 8 bytes. A record never wraps: when it does not fit between its
// place and the end of the lane, a padding word covers the rest and the record
// starts at offset 0.
const (
	recordHeader = 72
	recordAlign  = 8

	recFrame       = 0  // frame word, below
	recTarget      = 8  // u32
	recIfIndex     = 12 // u32
	recPushed      = 16 // i64
	recRemote      = 24 // endpoint word, below
	recLocal       = 32 // endpoint word
	recRemoteAddr  = 40 // 16 bytes
	recLocalAddr   = 56 // 16 bytes
	kindPacket     = 1
	kindPadding    = 2
	frameSegment   = 16 // shifts in the frame word; length in bits 0-15
	frameKind      = 32
	frameChannel   = 40
	frameECN       = 48
	frameReserved  = 56
	endpointPort   = 32 // shifts in an endpoint word; zone in bits 0-31
	endpointFamily = 48
)

// frame is the first word of a record: all that the framing of a lane depends on.
type frame uint64

const paddingFrame = frame(kindPadding) << frameKind

func packetFrame(r *Record, channel uint8) frame {
	return frame(len(r.Payload)) | frame(r.Segment)<<frameSegment | frame(kindPacket)<<frameKind |
		frame(channel)<<frameChannel | frame(r.ECN)<<frameECN
}

// put writes the frame to the start of b. A plain store: nobody reads it before
// the commit of the tail.
func (f frame) put(b []byte) { binary.NativeEndian.PutUint64(b, uint64(f)) }

func (f frame) length() int    { return int(f & 0xffff) }
func (f frame) segment() int   { return int(f >> frameSegment & 0xffff) }
func (f frame) kind() uint8    { return uint8(f >> frameKind) }
func (f frame) channel() uint8 { return uint8(f >> frameChannel) }
func (f frame) ecn() uint8     { return uint8(f >> frameECN) }
func (f frame) packets() int   { return packets(f.length(), f.segment()) }

// bytes returns what the record takes in the lane.
func (f frame) bytes() uint64 { return recordBytes(f.length()) }

// sane says whether the fields that do not matter for the framing are in range.
func (f frame) sane() bool {
	return f.segment() <= f.length() && f.ecn() <= 3 && f>>frameReserved == 0
}

func recordBytes(payload int) uint64 {
	return uint64(recordHeader+payload+recordAlign-1) &^ (recordAlign - 1)
}

func familyKnown(f uint8) bool { return f == 4 || f == 6 || f == 0 }

func (e *Endpoint) word() uint64 {
	return uint64(e.Zone) | uint64(e.Port)<<endpointPort | uint64(e.Family)<<endpointFamily
}

func (e *Endpoint) setWord(w uint64) {
	e.Zone, e.Port, e.Family = uint32(w), uint16(w>>endpointPort), uint8(w>>endpointFamily)
}

// valid says whether every field of r can be represented and is in range.
func (r *Record) valid() bool {
	return int(r.Segment) <= len(r.Payload) && r.ECN <= 3 && familyKnown(r.Remote.Family) && familyKnown(r.Local.Family)
}

// put writes the header words that follow the frame. Plain stores: nobody reads
// them before the commit of the tail.
func (r *Record) put(b []byte) {
	_ = b[recordHeader-1]
	ne := binary.NativeEndian
	ne.PutUint32(b[recTarget:], r.Target)
	ne.PutUint32(b[recIfIndex:], r.IfIndex)
	ne.PutUint64(b[recPushed:], uint64(r.Pushed))
	ne.PutUint64(b[recRemote:], r.Remote.word())
	ne.PutUint64(b[recLocal:], r.Local.word())
	copy(b[recRemoteAddr:recLocalAddr], r.Remote.Addr[:])
	copy(b[recLocalAddr:recordHeader], r.Local.Addr[:])
}

// get fills r from the record of frame f at off in lane, and says whether its
// fields are in range. Every word is read once. The payload aliases the lane.
//
// Preconditions: f was read from off once, and f.bytes() fit the lane there.
func (r *Record) get(lane mem.View, off int, f frame) bool {
	n := f.length()
	rec := lane.Bytes(off, recordHeader+n)
	ne := binary.NativeEndian
	r.Target = ne.Uint32(rec[recTarget:])
	r.IfIndex = ne.Uint32(rec[recIfIndex:])
	r.Pushed = int64(ne.Uint64(rec[recPushed:]))
	r.Remote.setWord(ne.Uint64(rec[recRemote:]))
	r.Local.setWord(ne.Uint64(rec[recLocal:]))
	copy(r.Remote.Addr[:], rec[recRemoteAddr:recLocalAddr])
	copy(r.Local.Addr[:], rec[recLocalAddr:recordHeader])
	r.ECN = f.ecn()
	r.Segment = uint16(f.segment())
	r.Payload = rec[recordHeader:]
	return f.sane() && familyKnown(r.Remote.Family) && familyKnown(r.Local.Family)
}
