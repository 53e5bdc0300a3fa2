package worker

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
)

// Initial packets are protected with keys that everybody can derive from the
// connection ID that the client sent its first packet to (RFC 9001, section
// 5.2): against damage on the way, not against readers.

const (
	initialKeyLen = 16
	initialIVLen  = 12
	initialTagLen = 16
	// sampleAt is where, counted from the packet number, the sample for header
	// protection begins, whatever the length of the number (RFC 9001, section
	// 5.4.2).
	sampleAt  = 4
	sampleLen = aes.BlockSize
)

// Which end an Initial packet is from, as key derivation calls it.
const (
	fromClient = "client in"
	fromServer = "server in"
)

// initialSecrets are the raw keys of one direction.
type initialSecrets struct{ key, iv, hp []byte }

// deriveInitial derives the keys of a version that is known here (RFC 9001,
// section 5.2; RFC 9369, section 3.3).
func deriveInitial(version uint32, dcid []byte, end string) (initialSecrets, error) {
	salt, prefix := salt1, "quic "
	if version == version2 {
		salt, prefix = salt2, "quicv2 "
	}
	initial, err := hkdf.Extract(sha256.New, dcid, salt)
	if err != nil {
		return initialSecrets{}, fmt.Errorf("extract initial secret: %w", err)
	}
	secret, err := expandLabel(initial, end, sha256.Size)
	if err != nil {
		return initialSecrets{}, err
	}
	var s initialSecrets
	for _, d := range []struct {
		label string
		n     int
		to    *[]byte
	}{{"key", initialKeyLen, &s.key}, {"iv", initialIVLen, &s.iv}, {"hp", initialKeyLen, &s.hp}} {
		if *d.to, err = expandLabel(secret, prefix+d.label, d.n); err != nil {
			return initialSecrets{}, err
		}
	}
	return s, nil
}

var (
	salt1 = []byte{0x38, 0x76, 0x2c, 0xf7, 0xf5, 0x59, 0x34, 0xb3, 0x4d, 0x17, 0x9a, 0xe6, 0xa4, 0xc8, 0x0c, 0xad, 0xcc, 0xbb, 0x7f, 0x0a}
	salt2 = []byte{0x0d, 0xed, 0xe3, 0xde, 0xf7, 0x00, 0xa6, 0xdb, 0x81, 0x93, 0x81, 0xbe, 0x6e, 0x26, 0x9d, 0xcb, 0xf9, 0xbd, 0x2e, 0xd9}
)

// expandLabel is HKDF-Expand-Label of RFC 8446, section 7.1, with no context.
func expandLabel(secret []byte, label string, n int) ([]byte, error) {
	label = "tls13 " + label
	info := binary.BigEndian.AppendUint16(nil, uint16(n))
	info = append(append(append(info, byte(len(label))), label...), 0)
	out, err := hkdf.Expand(sha256.New, secret, string(info), n)
	if err != nil {
		return nil, fmt.Errorf("expand %q: %w", label, err)
	}
	return out, nil
}

// initialKeys protect the Initial packets of one direction.
type initialKeys struct {
	aead cipher.AEAD
	hp   cipher.Block
	iv   []byte
}

func newInitialKeys(version uint32, dcid []byte, end string) (*initialKeys, error) {
	s, err := deriveInitial(version, dcid, end)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(s.key)
	if err != nil {
		return nil, fmt.Errorf("initial key: %w", err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, fmt.Errorf("initial key: %w", err)
	}
	hp, err := aes.NewCipher(s.hp)
	if err != nil {
		return nil, fmt.Errorf("initial header key: %w", err)
	}
	return &initialKeys{aead: aead, hp: hp, iv: s.iv}, nil
}

// seal protects a packet whose header, with a packet number of four bytes, ends
// before payload, and returns the whole packet (RFC 9001, section 5.3 and 5.4).
// It may use header's capacity.
//
// Preconditions: header ends with the packet number.
func (k *initialKeys) seal(header, payload []byte) []byte {
	const numberLen = 4
	number := len(header) - numberLen
	p := k.aead.Seal(header, k.nonce(header[number:]), payload, header)
	k.mask(p, number, func([]byte) int { return numberLen })
	return p
}

// open returns the payload of a protected packet of which the packet number is
// at the given place, or false if it is damaged, protected with other keys, or
// too short. b stays as it is.
//
// The packet number is taken as it is written: an endpoint's first packets have
// numbers that fit.
func (k *initialKeys) open(b []byte, number int) ([]byte, bool) {
	if len(b) < number+sampleAt+sampleLen {
		return nil, false
	}
	p := slices.Clone(b)
	n := k.mask(p, number, func(p []byte) int { return int(p[0]&0x3) + 1 })
	payload, err := k.aead.Open(nil, k.nonce(p[number:number+n]), p[number+n:], p[:number+n])
	return payload, err == nil
}

// mask adds or removes header protection, in place, and returns the length of
// the packet number, which lengthOf can tell once the first byte is bare.
func (k *initialKeys) mask(p []byte, number int, lengthOf func(p []byte) int) int {
	var mask [aes.BlockSize]byte
	k.hp.Encrypt(mask[:], p[number+sampleAt:number+sampleAt+sampleLen])
	p[0] ^= mask[0] & 0x0f // long header
	n := lengthOf(p)
	for i := range n {
		p[number+i] ^= mask[1+i]
	}
	return n
}

func (k *initialKeys) nonce(number []byte) []byte {
	nonce := slices.Clone(k.iv)
	for i, c := range number {
		nonce[len(nonce)-len(number)+i] ^= c
	}
	return nonce
}
