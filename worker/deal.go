package worker

import (
	"github.com/holdfast-quic/holdfast/connid"
	"github.com/holdfast-quic/holdfast/internal/udpmsg"
	"github.com/holdfast-quic/holdfast/packetqueue"
	"github.com/holdfast-quic/holdfast/shm"
)

// deal steers the datagrams of a train, run by run, until none is left or the
// caller's messages are full.
func (r *reader) deal(t *train) {
	for len(t.data) > 0 && !r.full() {
		h := parseHeader(t.first(), r.cidLen)
		v := r.judge(&h, t)
		switch v.action {
		case deliver, accept, answer:
			// A verdict that took note of something is for one datagram, so
			// that the next one is seen with the note taken.
			limit := 1
			if v.action == deliver && v.note == noteNothing {
				limit = len(r.messages) - r.filled
			}
			n := t.run(&h, limit)
			r.deliver(t, n, v.action)
			t.data = t.data[n:]
		case forward:
			n := t.run(&h, len(t.data))
			r.forward(t, n, v.owner)
			t.data = t.data[n:]
		default:
			n := len(t.first())
			r.tally.add(v.reason, 1)
			t.data = t.data[n:]
		}
	}
}

// judge looks up what steer needs, and carries out the parts of its verdict
// that concern the table, so that what it returns is deliver, accept, answer,
// forward or drop.
func (r *reader) judge(h *header, t *train) verdict {
	src := t.source
	q := question{class: h.class, source: src, self: r.node.self}
	if h.class == classMalformed {
		return steer(q)
	}
	id, err := connid.FromBytes(h.dcid[:min(len(h.dcid), maxCID)])
	if err != nil {
		return verdict{action: drop, reason: q.dropped(shm.DropMalformed).reason}
	}
	epoch := shm.EpochAt(r.now)
	if h.class != classUnknownVersion {
		var hit shm.Hit
		if hit, q.inTable = r.node.table.Lookup(id, epoch); q.inTable {
			q.table = hit.Owner
			q.handshaking = hit.Kind == shm.KindHandshaking && h.class == classShort && r.node.issuedBy(hit.Owner, h.dcid)
		} else {
			q.route, q.inRoute, q.damaged = r.node.routeOf(h.dcid)
			if h.class == classInitial {
				switch r.node.answersRetry(initialToken(t.first(), h), h.dcid) {
				case answersWell:
					q.inRoute = q.inRoute && r.node.shares(q.route)
				case answersIll:
					if r.refuse(h, t) {
						return q.dropped(shm.DropInvalidToken)
					}
				}
			}
		}
	}
	var gen shm.Generation
	var hash uint64
	if !q.inTable && !q.inRoute && !q.damaged {
		hash = r.node.table.Hash(id)
		choice := r.node.admission.Load()
		gen = choice.Current
		if choice.Canary != 0 && src == fromSocket && (h.class == classInitial || h.class == classZeroRTT) {
			return r.place(id, choice, hash)
		}
		q.admits = gen == r.node.generation
		if src == fromSocket && !r.unclaimed(h.class) {
			return verdict{action: drop, reason: shm.DropResetLimited}
		}
	}
	v := steer(q)
	switch v.action {
	case deliver:
		switch {
		case v.note != noteNothing:
			r.node.learn(id, v.note, h.class, epoch)
		case src == fromQueue && h.class == classInitial:
			r.node.admitted.note(r.now) // claimed for this worker by the one that read it
		}
	case accept:
		return r.admit(id, v, src)
	case forwardAdmitted:
		return r.toAdmitted(h.class, gen, hash)
	}
	return v
}

// unclaimed counts a packet from a socket that nobody owns, and reports false
// if it is one too many to be answered.
func (r *reader) unclaimed(c class) bool {
	switch c {
	case classShort:
		r.tally.add(shm.UnknownCID, 1)
		return r.resets.allow(r.now)
	case classUnknownVersion:
		r.tally.add(shm.UnknownVersion, 1)
	}
	return true
}

// admit claims a connection ID for a new connection of this worker. Another
// worker may have been quicker with a copy of the packet; then it is theirs.
func (r *reader) admit(id connid.ID, v verdict, src source) verdict {
	winner := r.node.admit(id, r.now)
	switch {
	case winner == r.node.self:
		return v
	case src == fromQueue:
		return verdict{action: drop, reason: shm.DropLoop}
	}
	return verdict{action: forward, owner: winner}
}

// toAdmitted chooses the worker that takes a packet which starts a connection
// or belongs to none. If no worker of the admitted generation serves this
// listener, a packet of an unknown connection is answered here: nobody else
// knows it either.
func (r *reader) toAdmitted(c class, gen shm.Generation, hash uint64) verdict {
	if owner, ok := r.peers.pick(gen, hash); ok {
		return verdict{action: forward, owner: owner}
	}
	if c == classShort {
		return verdict{action: answer}
	}
	return verdict{action: drop, reason: shm.DropNoListener}
}

// deliver copies n bytes of datagrams into the caller's messages.
func (r *reader) deliver(t *train, n int, a action) {
	if t.oob < 0 {
		t.oob = r.describe(t)
	}
	addr := r.addrs.get(t.remote)
	first := r.filled
	for data := t.data[:n]; len(data) > 0; {
		size := min(t.segment, len(data))
		m := &r.messages[r.filled]
		m.N = copy(m.Buffers[0], data[:size])
		m.NN = copy(m.OOB, r.oob[:t.oob])
		m.Addr = addr
		r.filled++
		data = data[size:]
	}
	count := uint64(r.filled - first)
	switch {
	case t.source == fromSocket && a == accept:
		r.tally.add(shm.PacketsAccepted, count)
	case t.source == fromSocket:
		r.tally.add(shm.PacketsDelivered, count)
	case a == accept:
		r.tally.add(shm.PulledAccepted, count)
	default:
		r.tally.add(shm.PulledDelivered, count)
	}
}

// describe makes the control data that a datagram would have come with from a
// socket of its own, and returns its length. Where the socket is bound to the
// one address that the datagram was sent to, there is nothing to say about it,
// and naming the interface would pin the answers to it.
func (r *reader) describe(t *train) int {
	oob := udpmsg.AppendECN(r.oob[:0], t.remote.Family, t.ecn)
	if r.elsewhere(t) {
		oob = udpmsg.AppendPacketInfo(oob, t.local, t.ifIndex)
	}
	return len(oob)
}

// elsewhere reports whether the datagrams of a train were sent to another address
// than answers come from unless told.
func (r *reader) elsewhere(t *train) bool {
	return t.local.Family != 0 && !t.local.SameIP(r.conn.localIP)
}

// forward pushes n bytes of datagrams into the queue of owner as one record,
// or, when that does not fit, as many of them as do.
func (r *reader) forward(t *train, n int, owner shm.Owner) {
	rec := &r.outward
	rec.Remote, rec.Local = packetqueue.Endpoint(t.remote), packetqueue.Endpoint(t.local)
	rec.IfIndex, rec.ECN, rec.Pushed = t.ifIndex, t.ecn, r.now
	total := t.count(n)
	step := total
	data := t.data[:n]
	for len(data) > 0 {
		part := data[:min(step*t.segment, len(data))]
		rec.Payload, rec.Segment = part, 0
		count := t.count(len(part))
		if count > 1 {
			rec.Segment = uint16(t.segment)
		}
		reason, ok := r.lanes.push(owner, rec)
		switch {
		case ok:
			r.tally.add(shm.PacketsForwarded, uint64(count))
			r.tally.add(shm.BytesForwarded, uint64(len(part)))
			data = data[len(part):]
		case reason == shm.DropQueueFull && step > 1:
			step /= 2
		default:
			r.tally.add(reason, uint64(t.count(len(data))))
			data = nil
		}
	}
	rec.Payload = nil
}
