package packetqueue

import "math/bits"

// laneSet is a set of lane numbers, in the format of a channel's dirty words.
type laneSet [dirtyWords]uint64

func (s *laneSet) add(i int)    { s[i>>6&(dirtyWords-1)] |= 1 << (i & 63) }
func (s *laneSet) remove(i int) { s[i>>6&(dirtyWords-1)] &^= 1 << (i & 63) }

// next returns the smallest member that is not below i, or -1.
func (s *laneSet) next(i int) int {
	for w := i >> 6; w < dirtyWords; w++ {
		word := s[w]
		if w == i>>6 {
			word &= ^uint64(0) << (i & 63)
		}
		if word != 0 {
			return w<<6 + bits.TrailingZeros64(word)
		}
	}
	return -1
}
