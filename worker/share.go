package worker

import (
	"github.com/holdfast-quic/holdfast/connid"
	"github.com/holdfast-quic/holdfast/shm"
)

// While a canary has a share of the new connections, whose a connection is
// becomes known with its first packet, and the table keeps it: the reader takes
// the turn (see [shm.Turn]) and claims the connection ID for the worker that it
// chose before it passes the packet on. What comes after with the same ID, a
// retransmission, the second part of a long ClientHello, 0-RTT data, finds the
// entry, whoever reads it. An ID that the table has no room for goes by its hash
// alone, which is off by chance, but always the same way.

// place decides who takes the connection that a packet from a socket starts,
// and returns accept, forward or drop.
func (r *reader) place(id connid.ID, c shm.Choice, hash uint64) verdict {
	owner, ok := r.taker(c, r.node.admission.QUICTurn(c, hash), hash)
	if ok {
		winner, err := r.node.claim(id, owner, r.now)
		if err == nil {
			owner = winner
		} else {
			owner, ok = r.taker(c, c.Pick(hash), hash)
		}
	}
	switch {
	case !ok:
		return verdict{action: drop, reason: shm.DropNoListener}
	case owner == r.node.self:
		return verdict{action: accept}
	}
	return verdict{action: forward, owner: owner}
}

// taker returns the worker of a generation that takes a connection with this
// hash, or one of the other generation if that has none for the listener: a
// connection counts for more than the share.
func (r *reader) taker(c shm.Choice, gen shm.Generation, hash uint64) (shm.Owner, bool) {
	for _, gen := range [...]shm.Generation{gen, c.Current ^ c.Canary ^ gen} {
		if gen == r.node.generation {
			return r.node.self, true
		}
		if owner, ok := r.peers.pick(gen, hash); ok {
			return owner, true
		}
	}
	return shm.Owner{}, false
}

// shares reports whether a worker may take new connections while a canary has
// a share. Only then does the answer to a Retry go to whoever sent the Retry: to
// let it take a turn of its own would let the two turns of one connection
// cancel each other out.
func (n *node) shares(o shm.Owner) bool {
	c := n.admission.Load()
	if c.Canary == 0 {
		return false
	}
	rec := n.directory.Record(o.Slot)
	return rec.Incarnation == o.Incarnation && rec.Serving && (rec.Generation == c.Current || rec.Generation == c.Canary)
}
