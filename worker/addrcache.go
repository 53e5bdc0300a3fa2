package worker

import (
	"net"

	"github.com/holdfast-quic/holdfast/internal/udpmsg"
)

// addrCacheSize is the number of client addresses that a listener remembers;
// a power of two.
const addrCacheSize = 4096

// addrCache gives each client address the net.UDPAddr that stands for it, so
// that delivering a packet allocates only when the client is new or was pushed
// out. Values are immutable and may be held by quic-go for as long as it
// likes. The cache belongs to one goroutine.
type addrCache struct {
	entries [addrCacheSize]struct {
		key udpmsg.Addr
		val *net.UDPAddr
	}
}

// get returns the net.UDPAddr of a.
func (c *addrCache) get(a udpmsg.Addr) *net.UDPAddr {
	e := &c.entries[hashAddr(&a)&(addrCacheSize-1)]
	if e.val == nil || e.key != a {
		e.key, e.val = a, a.UDPAddr()
	}
	return e.val
}

// hashAddr mixes an address into a number whose low bits are spread. A client
// that makes addresses collide slows down its own packets by an allocation.
func hashAddr(a *udpmsg.Addr) uint32 {
	const prime = 16777619 // FNV-1a
	h := uint32(2166136261)
	for _, b := range a.Addr {
		h = (h ^ uint32(b)) * prime
	}
	h = (h ^ a.Zone) * prime
	h = (h ^ uint32(a.Port)) * prime
	return h ^ h>>15
}
