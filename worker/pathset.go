package worker

import (
	"sync/atomic"

	"github.com/holdfast-quic/holdfast/internal/udpmsg"
)

// pathSet remembers some peers by IP address, without locks and with bounded
// memory: a newer one may push out an older one, which is then found out
// again. Two addresses may be taken for one, with a chance of 2^-64.
type pathSet struct {
	some  atomic.Bool
	slots [256]atomic.Uint64
}

func (s *pathSet) has(a *udpmsg.Addr) bool {
	if !s.some.Load() {
		return false
	}
	h := hashIP(a)
	return s.slots[h%uint64(len(s.slots))].Load() == h
}

func (s *pathSet) add(a *udpmsg.Addr) {
	h := hashIP(a)
	s.slots[h%uint64(len(s.slots))].Store(h)
	s.some.Store(true)
}

// hashIP returns a number that is not zero.
func hashIP(a *udpmsg.Addr) uint64 {
	const prime = 1099511628211 // FNV-1a
	h := uint64(14695981039346656037)
	for _, b := range a.Addr {
		h = (h ^ uint64(b)) * prime
	}
	h = (h ^ uint64(a.Family)) * prime
	return max(h^h>>32, 1)
}
