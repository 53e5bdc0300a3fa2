package connid

import (
	"encoding/binary"
	"encoding/hex"
)

// MaxLen is the longest connection ID of QUIC version 1 and 2, in octets
// (RFC 9000, section 17.2).
const MaxLen = 20

// wordOctets is how many octets the three words of an ID hold.
const wordOctets = 24

// ID is a QUIC connection ID as a value: comparable, usable as a map key,
// copied without allocating. The zero ID is the connection ID of length zero.
type ID struct {
	// As Words returns them. Octets beyond the length are always zero, so that
	// == means equal connection IDs. Three words rather than an array of three:
	// the compiler passes these in registers, and an array through memory.
	w0, w1, w2 uint64
}

// FromBytes copies b, which holds 0 to [MaxLen] octets, into an ID. It returns
// [ErrTooLong] for more.
func FromBytes(b []byte) (ID, error) {
	n := len(b)
	id := ID{w0: uint64(n)}
	switch {
	case n > MaxLen:
		return ID{}, ErrTooLong
	case n >= 16:
		id.w0 |= binary.LittleEndian.Uint64(b) << 8
		id.w1 = binary.LittleEndian.Uint64(b[7:])
		// The last eight octets, less those that w1 has.
		id.w2 = binary.LittleEndian.Uint64(b[n-8:]) >> (8 * (23 - n))
	case n >= 8:
		id.w0 |= binary.LittleEndian.Uint64(b) << 8
		// The last eight octets, less those that w0 has.
		id.w1 = binary.LittleEndian.Uint64(b[n-8:]) >> (8 * (15 - n))
	default:
		for i, c := range b {
			id.w0 |= uint64(c) << (8 * (i + 1))
		}
	}
	return id, nil
}

// Len returns the number of octets, 0 to [MaxLen].
func (id ID) Len() int { return int(id.w0 & 0xff) }

// AppendTo appends the octets of id to dst and returns the extended slice. It
// allocates only when dst has no room.
func (id ID) AppendTo(dst []byte) []byte {
	var raw [wordOctets]byte
	binary.LittleEndian.PutUint64(raw[0:], id.w0)
	binary.LittleEndian.PutUint64(raw[8:], id.w1)
	binary.LittleEndian.PutUint64(raw[16:], id.w2)
	return append(dst, raw[1:1+id.Len()]...)
}

// String returns the octets in lower-case hexadecimal digits.
func (id ID) String() string { return hex.EncodeToString(id.AppendTo(nil)) }

// Words returns id as three words, the form in which a table in shared memory
// stores and hashes it: read as 24 little-endian octets they are the length,
// the connection ID padded with zeros to 20 octets, and three zero octets.
func (id ID) Words() [3]uint64 { return [3]uint64{id.w0, id.w1, id.w2} }

// FromWords is the inverse of [ID.Words]. It reports false when w is not the
// form of any connection ID: a length over [MaxLen], or an octet that is not
// zero where padding belongs. Safe on words that nobody vouches for.
func FromWords(w [3]uint64) (ID, bool) {
	id := ID{w0: w[0], w1: w[1], w2: w[2]}
	n := id.Len()
	if n > MaxLen {
		return ID{}, false
	}
	for i, word := range w {
		used := min(max(1+n-8*i, 0), 8)
		if word>>(8*used) != 0 {
			return ID{}, false
		}
	}
	return id, true
}
