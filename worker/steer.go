package worker

import "github.com/holdfast-quic/holdfast/shm"

// source tells where a packet came from.
type source uint8

const (
	fromSocket source = iota // read from a reader socket; may be forwarded
	fromQueue                // pulled from the own queue; never forwarded again
)

// action is what is to be done with a packet.
type action uint8

const (
	deliver         action = iota // give it to the local connection
	accept                        // start a new connection here
	answer                        // quic-go answers it without a connection: stateless reset, version negotiation
	forward                       // push it into the queue of verdict.owner
	forwardAdmitted               // push it into the queue of a worker of the admitted generation
	drop                          // count it under verdict.reason
)

func (a action) String() string {
	return [...]string{"deliver", "accept", "answer", "forward", "forward admitted", "drop"}[a]
}

// note is what the table learns from a packet that is delivered.
type note uint8

const (
	noteNothing   note = iota
	noteEstablish      // the client uses an ID that was issued in the handshake
	noteLearn          // the client uses an ID that the table does not hold
)

// question is everything that a verdict depends on.
type question struct {
	class  class
	source source
	self   shm.Owner
	// table is the live owner that the table names for the connection ID.
	table       shm.Owner
	inTable     bool
	handshaking bool // the entry is of an unfinished handshake, and of an ID that its owner issued
	// route is the live owner that the connection ID itself names. It is
	// looked at only when the table has none.
	route   shm.Owner
	inRoute bool
	// damaged: it names a process of which nobody can tell whether it lives.
	damaged bool
	// admits: new connections with this ID belong to the generation of self.
	admits bool
}

// verdict is the result of steering.
type verdict struct {
	action action
	owner  shm.Owner   // of forward
	reason shm.Counter // of drop
	note   note        // of deliver
}

// steer decides about one packet. It is pure: it reads nothing but q.
//
//	class            owner: self   another   none, from a socket            none, from the queue
//	short            deliver       forward*  answer if admits, else fwd     answer
//	initial, 0-rtt   deliver       forward*  accept if admits, else fwd     accept
//	runt             deliver       forward*  drop malformed                 drop loop
//	handshake        deliver       forward*  drop orphan                    drop loop
//	unknown version  -             -         answer if admits, else fwd     answer
//	malformed        -             -         drop malformed                 drop loop
//
// The owner is whom the table names or else whom the route in the ID names. A
// packet from the queue was meant for this incarnation by whoever pushed it, so
// it is served whatever generation is current; (*) one that belongs to another
// is dropped as a loop.
//
// The route counts for an Initial too: clients send Initial packets late in a
// handshake, to an ID that they have got in a NEW_CONNECTION_ID frame, and a
// stranger that uses an ID of a live connection for its own must not get it
// entered in the table as somebody else's. Only an Initial that answers a Retry
// has an ID with a route and belongs to nobody: the caller tells it by its
// token and leaves the route out.
//
// A packet whose ID names a slot with a damaged record is dropped: it may be of
// a live connection, which an answer from here would end.
func steer(q question) verdict {
	if q.damaged {
		return q.dropped(shm.DropDeadTarget)
	}
	owner, owned, n := q.owner()
	switch q.class {
	case classShort:
		if owned {
			return q.owned(owner, n)
		}
		return q.unowned(answer)
	case classHandshake:
		if owned {
			return q.owned(owner, n)
		}
		return q.dropped(shm.DropOrphan)
	case classInitial, classZeroRTT:
		if owned {
			return q.owned(owner, n)
		}
		return q.unowned(accept)
	case classRunt:
		if owned {
			return q.owned(owner, n)
		}
		return q.dropped(shm.DropMalformed)
	case classUnknownVersion:
		return q.unowned(answer)
	default:
		return q.dropped(shm.DropMalformed)
	}
}

// owner finds the connection of a packet and what the table is to learn if it
// is ours. Nothing is learnt from an Initial: whoever sent it need not know
// the connection.
func (q *question) owner() (owner shm.Owner, ok bool, n note) {
	if q.inTable {
		if q.handshaking && q.class == classShort {
			n = noteEstablish
		}
		return q.table, true, n
	}
	if q.inRoute && (q.class == classShort || q.class == classHandshake) {
		n = noteLearn
	}
	return q.route, q.inRoute, n
}

// owned is the verdict on a packet whose connection lives at owner.
func (q *question) owned(owner shm.Owner, n note) verdict {
	switch {
	case owner == q.self:
		return verdict{action: deliver, note: n}
	case q.source == fromQueue:
		return verdict{action: drop, reason: shm.DropLoop}
	}
	return verdict{action: forward, owner: owner}
}

// unowned is the verdict on a packet of no connection that somebody has to
// take: here is what this worker does if it is the one.
func (q *question) unowned(here action) verdict {
	if q.source == fromQueue || q.admits {
		return verdict{action: here}
	}
	return verdict{action: forwardAdmitted}
}

// dropped is a drop for a reason, except that the queue knows one only.
func (q *question) dropped(reason shm.Counter) verdict {
	if q.source == fromQueue {
		reason = shm.DropLoop
	}
	return verdict{action: drop, reason: reason}
}
