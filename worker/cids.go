package worker

import (
	"github.com/holdfast-quic/holdfast/connid"
	"github.com/holdfast-quic/holdfast/shm"
)

// routeOf returns the live worker that a connection ID itself names. If there is
// none, it reports whether the record of the slot is damaged, so that there may
// be one all the same.
func (n *node) routeOf(cid []byte) (owner shm.Owner, ok, damaged bool) {
	route, ok := n.router.Route(cid)
	if !ok {
		return shm.Owner{}, false, false
	}
	if owner, ok = n.directory.AliveRoute(route.Slot, route.Incarnation); ok {
		return owner, true, false
	}
	return shm.Owner{}, false, n.directory.Damaged(route.Slot)
}

// issuedBy reports whether a connection ID is one that owner has issued. One that
// a client chose for its first packets is in the table too, but no client that
// has finished its handshake uses it.
func (n *node) issuedBy(owner shm.Owner, cid []byte) bool {
	o, ok, _ := n.routeOf(cid)
	return ok && o == owner
}

// learn writes down what a packet of a local connection has shown: that its
// client uses this connection ID. Without room the connection lives on by the
// route in its IDs.
func (n *node) learn(id connid.ID, what note, c class, epoch shm.Epoch) {
	n.admitted.any.Store(true)
	var err error
	switch {
	case what == noteEstablish || c == classShort:
		err = n.table.Establish(id, n.self, epoch)
	default:
		_, err = n.table.Insert(id, n.self, shm.KindHandshaking, epoch)
	}
	if err != nil {
		n.counters.Add(shm.TableFull, 1)
	}
}

// issued notes a connection ID of this worker that an outgoing handshake
// packet tells the client, before the client can use it: the Initial packets
// it sends next are looked up in the table alone.
func (n *node) issued(scid []byte) {
	id, err := connid.FromBytes(scid)
	if err != nil {
		return
	}
	epoch := shm.EpochAt(n.clock.now())
	if hit, ok := n.table.Lookup(id, epoch); ok && hit.Owner == n.self {
		return
	}
	if !n.issuedBy(n.self, scid) {
		return // the client's own, in a refusal
	}
	n.admit(id, n.clock.now())
}
