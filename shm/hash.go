package shm

import "math/bits"

// sipKey is the state of SipHash after taking in its key.
type sipKey struct{ v0, v1, v2, v3 uint64 }

func newSipKey(k0, k1 uint64) sipKey {
	return sipKey{
		k0 ^ 0x736f6d6570736575,
		k1 ^ 0x646f72616e646f6d,
		k0 ^ 0x6c7967656e657261,
		k1 ^ 0x7465646279746573,
	}
}

// sum is SipHash-1-3 over three words. The block that gives a message its length
// is left out: every message is three words long, and the first of them begins
// with the length of the connection ID.
//
// Only additions, rotations and exclusive ors of 64-bit words, no loop and no
// table, so an eBPF program can compute it too. The key is what keeps clients,
// who choose some of the connection IDs, from choosing their buckets.
func (k *sipKey) sum(w0, w1, w2 uint64) uint64 {
	v0, v1, v2, v3 := k.v0, k.v1, k.v2, k.v3

	v3 ^= w0
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0 ^= w0

	v3 ^= w1
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0 ^= w1

	v3 ^= w2
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0 ^= w2

	v2 ^= 0xff
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	return v0 ^ v1 ^ v2 ^ v3
}

func sipRound(v0, v1, v2, v3 uint64) (uint64, uint64, uint64, uint64) {
	v0 += v1
	v2 += v3
	v1 = bits.RotateLeft64(v1, 13) ^ v0
	v3 = bits.RotateLeft64(v3, 16) ^ v2
	v0 = bits.RotateLeft64(v0, 32) + v3
	v2 += v1
	v1 = bits.RotateLeft64(v1, 17) ^ v2
	v3 = bits.RotateLeft64(v3, 21) ^ v0
	return v0, v1, bits.RotateLeft64(v2, 32), v3
}
