package connid

import (
	"crypto/aes"
	"crypto/cipher"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
)

// The first octet: configuration rotation, then length or random bits.
const (
	rotationShift = 5
	lengthMask    = 1<<rotationShift - 1
)

// scratchPool is shared by all codecs: what it holds depends on none.
var scratchPool = sync.Pool{New: func() any { return new(scratch) }}

// Codec encodes and decodes the connection IDs of one [Config]. It is
// immutable and safe for concurrent use.
type Codec struct {
	config Config       // without the key
	block  cipher.Block // nil when connection IDs are plain
	idLen  int          // octets of the server ID
	n      int          // octets of server ID and nonce
}

// NewCodec returns the codec of config; it keeps no reference to its slices. It returns
// an error that wraps [ErrConfig] when the draft does not allow config.
func NewCodec(config Config) (*Codec, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	c := &Codec{
		config: config,
		idLen:  len(config.ServerID),
		n:      len(config.ServerID) + config.NonceLen,
	}
	c.config.Key = nil
	c.config.ServerID = slices.Clone(config.ServerID)
	if config.Key != nil {
		block, err := aes.NewCipher(config.Key)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrConfig, err)
		}
		c.block = block
	}
	return c, nil
}

// Len returns the octets of a connection ID, the first octet included.
func (c *Codec) Len() int { return 1 + c.n }

// Format implements [fmt.Formatter]: it describes the configuration, and no
// verb prints the key or what was made from it.
func (c *Codec) Format(w fmt.State, _ rune) { c.config.format(w, c.block != nil) }

// Encode returns the connection ID of the configured server ID and nonce, or
// [ErrNonce] when the nonce does not have the configured length.
//
// A nonce must be used once only under one key and server ID. Two connection
// IDs of one nonce are equal but for the first octet's random bits.
func (c *Codec) Encode(nonce []byte) (ID, error) {
	if len(nonce) != c.config.NonceLen {
		return ID{}, fmt.Errorf("%w: %d octets, not %d", ErrNonce, len(nonce), c.config.NonceLen)
	}
	var cid [MaxLen]byte
	cid[0] = c.firstOctet()
	text := cid[1:c.Len()]
	copy(text, c.config.ServerID)
	copy(text[c.idLen:], nonce)
	c.encrypt(text)
	return FromBytes(cid[:c.Len()])
}

// Decode returns the server ID and the nonce inside cid, whichever host made
// it. It reports false for what this configuration does not make: another
// length, other rotation bits, or, with EncodeLength, another length in the
// first octet. Nothing authenticates a connection ID: any other octets of the
// right length decode to something.
//
// Decode keeps no reference to cid. It does not allocate as long as the caller
// lets neither result escape to the heap.
func (c *Codec) Decode(cid []byte) (serverID, nonce []byte, ok bool) {
	// Small enough to be inlined, which puts text on the caller's stack.
	var text [maxTextLen]byte
	return c.decode(&text, cid)
}

// decode returns parts of text, which it fills.
func (c *Codec) decode(text *[maxTextLen]byte, cid []byte) (serverID, nonce []byte, ok bool) {
	if len(cid) != c.Len() || cid[0]>>rotationShift != c.config.Rotation {
		return nil, nil, false
	}
	if c.config.EncodeLength && int(cid[0]&lengthMask) != c.n {
		return nil, nil, false
	}
	copy(text[:c.n], cid[1:])
	c.decrypt(text[:c.n])
	return text[:c.idLen], text[c.idLen:c.n], true
}

func (c *Codec) firstOctet() byte {
	low := byte(c.n)
	if !c.config.EncodeLength {
		// These bits carry no meaning and protect nothing, so they need not
		// come from the system's generator.
		low = byte(rand.Uint32()) & lengthMask
	}
	return c.config.Rotation<<rotationShift | low
}

func (c *Codec) encrypt(text []byte) {
	if c.block == nil {
		return
	}
	s := scratchPool.Get().(*scratch)
	defer scratchPool.Put(s)
	if c.n != blockLen {
		feistel{block: c.block, s: s, n: c.n}.encrypt(text)
		return
	}
	copy(s.in[:], text)
	c.block.Encrypt(s.out[:], s.in[:])
	copy(text, s.out[:])
}

func (c *Codec) decrypt(text []byte) {
	if c.block == nil {
		return
	}
	s := scratchPool.Get().(*scratch)
	defer scratchPool.Put(s)
	if c.n != blockLen {
		feistel{block: c.block, s: s, n: c.n}.decrypt(text)
		return
	}
	copy(s.in[:], text)
	c.block.Decrypt(s.out[:], s.in[:])
	copy(text, s.out[:])
}
