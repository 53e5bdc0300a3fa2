package connid

import "crypto/cipher"

// Lengths of the Feistel network's round input, which is one AES block: a half
// padded with zeros, then the text's length and the number of the round.
const (
	blockLen    = 16
	expandedLen = 14
	rounds      = 4
)

// scratch holds what goes through [cipher.Block], whose arguments escape to
// the heap because it is an interface. Codecs take it from a pool.
type scratch struct {
	in, out     [blockLen]byte
	left, right [expandedLen]byte
}

// feistel is one text on its way through the network.
//
// A text of odd length is split in the middle of its middle octet: the lower
// four bits of left's last octet and the upper four bits of right's first
// octet are spare, and zero before and after every round.
type feistel struct {
	block cipher.Block
	s     *scratch
	n     int // octets of the text, 5 to 19
}

func (f feistel) encrypt(text []byte) {
	f.split(text)
	for i := 1; i <= rounds; i++ {
		f.round(i)
	}
	f.join(text)
}

func (f feistel) decrypt(text []byte) {
	f.split(text)
	for i := rounds; i >= 1; i-- {
		f.round(i)
	}
	f.join(text)
}

func (f feistel) half() int { return (f.n + 1) / 2 }

func (f feistel) split(text []byte) {
	h := f.half()
	copy(f.s.left[:h], text[:h])
	copy(f.s.right[:h], text[f.n-h:f.n])
	f.clearSpare()
}

func (f feistel) join(text []byte) {
	h := f.half()
	copy(text[f.n-h:f.n], f.s.right[:h])
	if f.n%2 == 0 {
		copy(text[:h], f.s.left[:h])
		return
	}
	copy(text[:h-1], f.s.left[:h-1])
	text[h-1] = f.s.left[h-1] | f.s.right[0]
}

// round is its own inverse: it changes one half by a function of the other.
func (f feistel) round(i int) {
	h := f.half()
	from, to := &f.s.left, &f.s.right
	if i%2 == 0 {
		from, to = to, from
	}
	expand(&f.s.in, from[:h], f.n, i)
	f.block.Encrypt(f.s.out[:], f.s.in[:])
	for j := range h {
		to[j] ^= f.s.out[j]
	}
	f.clearSpare()
}

func (f feistel) clearSpare() {
	if f.n%2 == 1 {
		f.s.left[f.half()-1] &= 0xf0
		f.s.right[0] &= 0x0f
	}
}

// expand fills dst with the input of round i for a text of n octets.
func expand(dst *[blockLen]byte, half []byte, n, i int) {
	clear(dst[copy(dst[:expandedLen], half):expandedLen])
	dst[expandedLen] = byte(n)
	dst[expandedLen+1] = byte(i)
}
