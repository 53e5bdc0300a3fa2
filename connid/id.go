package connid

import "encoding/hex"

// MaxLen is the longest connection ID of QUIC version 1 and 2, in octets
// (RFC 9000, section 17.2).
const MaxLen = 20

// ID is a QUIC connection ID as a value: comparable, usable as a map key,
// copied without allocating. The zero ID is the connection ID of length zero.
//
// Octets beyond the length are always zero, so == means equal connection IDs.
type ID struct {
	b [MaxLen]byte
	n uint8
}

// FromBytes copies b, which holds 0 to [MaxLen] octets, into an ID. It returns
// [ErrTooLong] for more.
func FromBytes(b []byte) (ID, error) {
	var id ID
	if len(b) > MaxLen {
		return ID{}, ErrTooLong
	}
	id.n = uint8(copy(id.b[:], b))
	return id, nil
}

// Len returns the number of octets, 0 to [MaxLen].
func (id ID) Len() int { return int(id.n) }

// AppendTo appends the octets of id to dst and returns the extended slice. It
// allocates only when dst has no room.
func (id ID) AppendTo(dst []byte) []byte { return append(dst, id.b[:id.n]...) }

// String returns the octets in lower-case hexadecimal digits.
func (id ID) String() string { return hex.EncodeToString(id.b[:id.n]) }

// Words returns id as three words, the form in which a table in shared memory
// stores and hashes it: read as 24 little-endian octets they are the length,
// the connection ID padded with zeros to 20 octets, and three zero octets.
func (id ID) Words() [3]uint64 {
	b := &id.b
	return [3]uint64{
		uint64(id.n) | uint64(b[0])<<8 | uint64(b[1])<<16 | uint64(b[2])<<24 |
			uint64(b[3])<<32 | uint64(b[4])<<40 | uint64(b[5])<<48 | uint64(b[6])<<56,
		uint64(b[7]) | uint64(b[8])<<8 | uint64(b[9])<<16 | uint64(b[10])<<24 |
			uint64(b[11])<<32 | uint64(b[12])<<40 | uint64(b[13])<<48 | uint64(b[14])<<56,
		uint64(b[15]) | uint64(b[16])<<8 | uint64(b[17])<<16 | uint64(b[18])<<24 |
			uint64(b[19])<<32,
	}
}

// FromWords is the inverse of [ID.Words]. It reports false when w is not the
// form of any connection ID: a length over [MaxLen], or an octet that is not
// zero where padding belongs. Safe on bytes that nobody vouches for.
func FromWords(w [3]uint64) (ID, bool) {
	var id ID
	n := w[0] & 0xff
	if n > MaxLen {
		return ID{}, false
	}
	id.n = uint8(n)
	for i := range id.b {
		at := i + 1
		id.b[i] = byte(w[at/8] >> (at % 8 * 8))
	}
	if w[2]>>40 != 0 {
		return ID{}, false
	}
	for _, c := range id.b[n:] {
		if c != 0 {
			return ID{}, false
		}
	}
	return id, true
}
