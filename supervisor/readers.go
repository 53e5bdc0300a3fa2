package supervisor

import (
	"maps"
	"slices"
	"time"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
)

// acceptSettle is how long a TCP socket that moved elsewhere is accepted from.
const acceptSettle = time.Second

// readerSet is what one worker is to read: socket indices by listener.
type readerSet struct {
	udp map[uint8][]int
	tcp map[uint8][]int
}

func (r readerSet) equal(o readerSet) bool {
	return maps.EqualFunc(r.udp, o.udp, slices.Equal) && maps.EqualFunc(r.tcp, o.tcp, slices.Equal)
}

func (r *readerSet) add(network string, listener uint8, index int) {
	m := &r.udp
	if network == networkTCP {
		m = &r.tcp
	}
	if *m == nil {
		*m = map[uint8][]int{}
	}
	(*m)[listener] = append((*m)[listener], index)
}

// readerGroup is a generation as far as reading goes.
type readerGroup struct {
	listeners uint64 // set of listener IDs
	// members says for each place whether its worker can read.
	members []bool
	accepts bool // takes new TCP connections
}

func (g readerGroup) canRead() bool { return slices.Contains(g.members, true) }

// reader is the place that reads the socket at position i of its reuseport
// group: the one that it belongs to, or the next that lives.
func (g readerGroup) reader(i int) int {
	for n := range g.members {
		if place := (i + n) % len(g.members); g.members[place] {
			return place
		}
	}
	return -1
}

// readSocket is a socket as far as reading goes.
type readSocket struct {
	key      socketKey
	position int  // within its reuseport group
	shared   bool // all members read it
}

// desired computes what every place of every group is to read. Groups come in
// the order in which they have a right to a listener: the current generation,
// then the draining ones from the newest on. The incoming one, during its
// handover, reads beside the others: two readers of one socket do no harm,
// since each steers every packet; none would leave packets waiting.
//
// A listener that the current generation does not have is read on by the
// newest generation that has it, for the connections that it holds. So is one
// whose current workers are all dead.
func desired(sockets []readSocket, ranked []readerGroup, incoming *readerGroup) (forRanked [][]readerSet, forIncoming []readerSet) {
	forRanked = make([][]readerSet, len(ranked))
	for i, g := range ranked {
		forRanked[i] = make([]readerSet, len(g.members))
	}
	if incoming != nil {
		forIncoming = make([]readerSet, len(incoming.members))
	}
	for _, sock := range sockets {
		if incoming != nil {
			assign(forIncoming, *incoming, sock)
		}
		for i, g := range ranked {
			if assign(forRanked[i], g, sock) {
				break
			}
		}
	}
	return forRanked, forIncoming
}

// assign gives the socket to a group and reports whether the group reads it.
func assign(sets []readerSet, g readerGroup, sock readSocket) bool {
	if g.listeners&(1<<sock.key.listener) == 0 || !g.canRead() {
		return false
	}
	if sock.key.network == networkUDP && !sock.shared {
		sets[g.reader(sock.position)].add(networkUDP, sock.key.listener, sock.key.index)
		return true
	}
	if g.accepts || sock.shared {
		for place, alive := range g.members {
			if alive {
				sets[place].add(sock.key.network, sock.key.listener, sock.key.index)
			}
		}
	}
	return true
}

// reconcile brings every worker nearer to what it is to hold and to read. It
// is called after each change of a generation, worker or socket, and does
// nothing when nothing differs.
func (s *Supervisor) reconcile() {
	s.retireSockets()
	ranked, incoming := s.ranked()
	groups := make([]readerGroup, len(ranked))
	for i, g := range ranked {
		groups[i] = g.readerGroup(g == s.current && s.stopping == stopNone)
	}
	var in *readerGroup
	if incoming != nil {
		group := incoming.readerGroup(true)
		in = &group
	}
	sets, incomingSets := desired(s.readSockets(), groups, in)
	for i, g := range ranked {
		s.apply(g, sets[i])
	}
	if incoming != nil {
		s.apply(incoming, incomingSets)
	}
	s.syncStore()
}

// ranked returns the generations that read, best first, and the one that is
// being handed to.
func (s *Supervisor) ranked() (ranked []*generation, incoming *generation) {
	if s.current != nil {
		ranked = append(ranked, s.current)
	}
	ranked = append(ranked, s.draining()...)
	ranked = slices.Compact(ranked) // at a stop the current one drains too
	if g := s.incoming; g != nil && g.handing {
		incoming = g
	}
	return ranked, incoming
}

func (g *generation) readerGroup(accepts bool) readerGroup {
	return readerGroup{listeners: g.mask(), members: g.readers(), accepts: accepts}
}

func (s *Supervisor) readSockets() []readSocket {
	var out []readSocket
	for _, l := range s.sockets.all() {
		for _, set := range l.sets {
			for i, sock := range set.sockets {
				out = append(out, readSocket{key: sock.key(), position: i, shared: set.shared})
			}
		}
	}
	return out
}

// apply sends the members of g what differs from what they have.
func (s *Supervisor) apply(g *generation, sets []readerSet) {
	for i, m := range g.members {
		w := m.w
		if w == nil || w.state != workerServing && w.state != workerDraining {
			continue
		}
		// One that hangs gets to know when it is back what is different then.
		// Until then it may read beside its stand-in, which does no harm.
		if w.pulse.hung {
			continue
		}
		// A worker whose generation only drains is given nothing new.
		if g == s.current || g == s.incoming {
			s.giveSockets(w)
		}
		if w.readers.equal(sets[i]) {
			continue
		}
		w.readers = sets[i]
		w.readersSeq++
		w.send(&lifeline.Message{Kind: lifeline.KindReaders, Readers: &lifeline.Readers{
			Seq: w.readersSeq, UDP: w.readers.udp, TCP: w.readers.tcp,
		}})
	}
}

// giveSockets sends what the worker lacks of its listeners' sockets.
func (s *Supervisor) giveSockets(w *worker) {
	for _, sock := range s.socketsFor(w.gen) {
		if w.sockets[sock.key()] {
			continue
		}
		w.sockets[sock.key()] = true
		described := sock.describe(!w.gen.asks(sock.set))
		w.send(&lifeline.Message{Kind: lifeline.KindSocket, Socket: &described}, sock.file)
	}
}

// retireSockets closes what no generation asks for any more.
func (s *Supervisor) retireSockets() {
	for _, l := range s.sockets.all() {
		for _, set := range slices.Clone(l.sets) {
			if !s.setNeeded(set) {
				s.dropSet(set)
			}
		}
		if !s.listenerKnown(l) {
			s.sockets.forget(l)
		}
	}
}

func (s *Supervisor) listenerKnown(l *listener) bool {
	return slices.ContainsFunc(s.generations, func(g *generation) bool { return !g.ended() && g.has(l) })
}

// setNeeded reports whether a set is still of use. UDP sockets are, to any
// generation that asks for them: its connections live on them. TCP
// connections do not need the listening socket, so that goes once it was
// released. A socket inside of an address that is asked for stays: closing it
// would lose what is queued in it, and it costs nothing.
func (s *Supervisor) setNeeded(set *socketSet) bool {
	if set.network == networkTCP && s.stopping != stopNone {
		return false
	}
	for _, g := range s.generations {
		if !g.ended() && g.asks(set) && (set.network == networkUDP || g == s.current || g == s.incoming || !set.released) {
			return true
		}
	}
	newest := s.newestAsking()
	return newest != nil && slices.ContainsFunc(set.listener.sets, func(o *socketSet) bool {
		return o != set && o.network == set.network && newest.asks(o) && contains(o.address, set.address)
	})
}

// releaseTCP lets go of the TCP sockets that the current generation does not
// ask for: at once when it does not serve the listener over TCP at all, else
// after a moment in which it accepts what was queued.
func (s *Supervisor) releaseTCP() {
	for _, l := range s.sockets.all() {
		served := slices.ContainsFunc(l.sets, func(o *socketSet) bool { return o.network == networkTCP && s.current.asks(o) })
		for _, set := range l.sets {
			set.released = set.network == networkTCP && !s.current.asks(set) && !served
			if set.network == networkTCP && !s.current.asks(set) && served {
				s.after(acceptSettle, func() {
					set.released = s.current != nil && !s.current.asks(set)
					s.reconcile()
				})
			}
		}
	}
}

// newestAsking is the generation whose configuration counts: the current one,
// or the incoming one before there is a current one.
func (s *Supervisor) newestAsking() *generation {
	if s.current != nil {
		return s.current
	}
	return s.incoming
}

// dropSet closes a set and tells the workers that hold its sockets.
func (s *Supervisor) dropSet(set *socketSet) {
	for w := range s.workers {
		for _, sock := range set.sockets {
			if !w.sockets[sock.key()] {
				continue
			}
			delete(w.sockets, sock.key())
			if w.welcomed() {
				described := sock.describe(true)
				w.send(&lifeline.Message{Kind: lifeline.KindDropSocket, Socket: &described})
			}
		}
	}
	s.sockets.close(set)
}
