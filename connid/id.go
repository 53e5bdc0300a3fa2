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
	// As Words returns it. Octets beyond the length are always zero, so that
	// == means equal connection IDs.
	w [3]uint64
}

// FromBytes copies b, which holds 0 to [MaxLen] octets, into an ID. It returns
// [ErrTooLong] for more.
func FromBytes(b []byte) (ID, error) {
	if len(b) > MaxLen {
		return ID{}, ErrTooLong
	}
	var raw [wordOctets]byte
	raw[0] = byte(len(b))
	copy(raw[1:], b)
	return ID{w: [3]uint64{
		binary.LittleEndian.Uint64(raw[0:]),
		binary.LittleEndian.Uint64(raw[8:]),
		binary.LittleEndian.Uint64(raw[16:]),
	}}, nil
}

// Len returns the number of octets, 0 to [MaxLen].
func (id ID) Len() int { return int(id.w[0] & 0xff) }

// AppendTo appends the octets of id to dst and returns the extended slice. It
// allocates only when dst has no room.
func (id ID) AppendTo(dst []byte) []byte {
	var raw [wordOctets]byte
	binary.LittleEndian.PutUint64(raw[0:], id.w[0])
	binary.LittleEndian.PutUint64(raw[8:], id.w[1])
	binary.LittleEndian.PutUint64(raw[16:], id.w[2])
	return append(dst, raw[1:1+id.Len()]...)
}

// String returns the octets in lower-case hexadecimal digits.
func (id ID) String() string { return hex.EncodeToString(id.AppendTo(nil)) }

// Words returns id as three words, the form in which a table in shared memory
// stores and hashes it: read as 24 little-endian octets they are the length,
// the connection ID padded with zeros to 20 octets, and three zero octets.
func (id ID) Words() [3]uint64 { return id.w }

// FromWords is the inverse of [ID.Words]. It reports false when w is not the
// form of any connection ID: a length over [MaxLen], or an octet that is not
// zero where padding belongs. Safe on words that nobody vouches for.
func FromWords(w [3]uint64) (ID, bool) {
	id := ID{w: w}
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
