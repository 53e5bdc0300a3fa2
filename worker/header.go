package worker

import "encoding/binary"

// Versions of QUIC whose long header types are known here. Everything else is
// read by its invariants alone (RFC 8999).
const (
	version1 = 0x00000001 // RFC 9000
	version2 = 0x6b3343cf // RFC 9369
)

const (
	// maxDatagram is the largest datagram that quic-go has a buffer for; a
	// longer one could only be delivered cut off.
	maxDatagram = 1452
	// minInitial is the least size of a datagram with a client's Initial
	// packet (RFC 9000, section 14.1).
	minInitial = 1200
	// minInitialCID is the least length of a connection ID that a client may
	// choose (RFC 9000, section 7.2).
	minInitialCID = 8
	// maxCID is the greatest length of a connection ID in version 1 and 2.
	maxCID = 20
)

// class is what steering needs to know about a packet.
type class uint8

const (
	classMalformed      class = iota // not QUIC, or cut off
	classShort                       // 1-RTT, or whatever hides behind a short header
	classInitial                     // client's first flight; may start a connection
	classRunt                        // Initial in a datagram too small to start a connection
	classZeroRTT                     // early data; may overtake the Initial
	classHandshake                   // belongs to a connection, never starts one
	classUnknownVersion              // to be answered with version negotiation
	numClasses
)

func (c class) String() string {
	return [numClasses]string{"malformed", "short", "initial", "runt", "0-rtt", "handshake", "unknown version"}[c]
}

// header is the part of a packet that is not encrypted. Its slices alias the
// packet.
type header struct {
	class   class
	version uint32
	dcid    []byte
	scid    []byte // long headers only
}

// parseHeader reads the header of the first packet in a datagram. cidLen is
// the length of the connection IDs that this host issues, which is all that
// tells where the one in a short header ends. It never fails: what cannot be
// read is classMalformed.
func parseHeader(b []byte, cidLen int) header {
	const (
		longForm = 0x80
		fixedBit = 0x40
	)
	if len(b) == 0 || len(b) > maxDatagram {
		return header{}
	}
	if b[0]&longForm == 0 {
		// Without the fixed bit quic-go takes it for another protocol.
		if b[0]&fixedBit == 0 || len(b) < 1+cidLen {
			return header{}
		}
		return header{class: classShort, dcid: b[1 : 1+cidLen]}
	}
	h, ok := parseLong(b)
	if !ok {
		return header{}
	}
	h.class = h.longClass(b[0], len(b))
	return h
}

// parseLong reads the invariant part of a long header (RFC 8999, section 5.1).
func parseLong(b []byte) (header, bool) {
	const versionEnd = 5
	if len(b) < versionEnd+2 {
		return header{}, false
	}
	h := header{version: binary.BigEndian.Uint32(b[1:versionEnd])}
	rest := b[versionEnd:]
	n := int(rest[0])
	if len(rest) < 1+n+1 {
		return header{}, false
	}
	h.dcid, rest = rest[1:1+n], rest[1+n:]
	n = int(rest[0])
	if len(rest) < 1+n {
		return header{}, false
	}
	h.scid = rest[1 : 1+n]
	return h, true
}

// longClass names the type of a long header packet in a datagram of size
// bytes. The type bits are those of RFC 9000, section 17.2, and RFC 9369,
// section 3.2.
func (h *header) longClass(first byte, size int) class {
	kind := first >> 4 & 0x3
	switch h.version {
	case 0:
		// Version negotiation, which answers a packet that we sent.
		if len(h.dcid) > maxCID {
			return classMalformed
		}
		return classHandshake
	case version1:
	case version2:
		kind = (kind - 1) & 0x3
	default:
		return classUnknownVersion
	}
	if len(h.dcid) > maxCID || len(h.scid) > maxCID {
		return classMalformed
	}
	const initial, zeroRTT = 0, 1
	switch {
	case kind != initial && kind != zeroRTT:
		return classHandshake
	case len(h.dcid) < minInitialCID:
		return classMalformed
	case kind == zeroRTT:
		return classZeroRTT
	case size < minInitial:
		return classRunt
	}
	return classInitial
}

// initialToken returns the token of an Initial packet of a known version (RFC
// 9000, section 17.2.2); empty if there is none.
func initialToken(b []byte, h *header) []byte {
	token, _, _ := cutToken(b, h)
	return token
}

// cutToken returns the token of an Initial packet and what follows it.
func cutToken(b []byte, h *header) (token, rest []byte, ok bool) {
	length, rest, ok := cutVarint(b[longHeaderLen(h):])
	if !ok || length > uint64(len(rest)) {
		return nil, nil, false
	}
	return rest[:length], rest[length:], true
}

// longHeaderLen is the length of a long header up to its source connection ID.
func longHeaderLen(h *header) int { return 5 + 1 + len(h.dcid) + 1 + len(h.scid) }

// cutVarint splits a variable-length integer off b (RFC 9000, section 16).
func cutVarint(b []byte) (v uint64, rest []byte, ok bool) {
	if len(b) == 0 {
		return 0, nil, false
	}
	n := 1 << (b[0] >> 6)
	if len(b) < n {
		return 0, nil, false
	}
	v = uint64(b[0] & 0x3f)
	for _, c := range b[1:n] {
		v = v<<8 | uint64(c)
	}
	return v, b[n:], true
}

// issuedSCID returns the source connection ID of an outgoing Initial or
// Handshake packet: an ID of our own that the client is about to use. Retry
// is left out, so that the Initial that answers it may start a connection
// wherever it arrives.
func issuedSCID(b []byte, cidLen int) ([]byte, bool) {
	const longForm, retry = 0x80, 3
	if len(b) == 0 || b[0]&longForm == 0 {
		return nil, false
	}
	h, ok := parseLong(b)
	if !ok || len(h.scid) != cidLen {
		return nil, false
	}
	kind := b[0] >> 4 & 0x3
	switch h.version {
	case version1:
	case version2:
		kind = (kind - 1) & 0x3
	default:
		return nil, false
	}
	return h.scid, kind != retry
}
