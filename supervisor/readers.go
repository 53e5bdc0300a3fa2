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
	beside  bool // reads UDP whoever else does
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
// a canary, then the draining ones from the newest on. A canary's packets come
// through its queues, but it accepts TCP connections as the current generation
// does. Who is handed to, or from, reads beside the others: two readers of one
// socket do no harm, since each steers every packet; none would leave packets
// waiting.
//
// A listener that the current generation does not have is read on by the
// newest generation that has it, for the connections that it holds. So is one
// whose current workers are all dead.
func desired(sockets []readSocket, ranked []readerGroup) [][]readerSet {
	sets := make([][]readerSet, len(ranked))
	for i, g := range ranked {
		sets[i] = make([]readerSet, len(g.members))
	}
	for _, sock := range sockets {
		read := false
		for i, g := range ranked {
			switch {
			case g.listeners&(1<<sock.key.listener) == 0 || !g.canRead():
			case sock.key.network == networkTCP:
				if g.accepts {
					g.give(sets[i], sock)
				}
			case g.beside:
				g.read(sets[i], sock)
			case !read:
				g.read(sets[i], sock)
				read = true
			}
		}
	}
	return sets
}

// read gives a UDP socket to one place, or one that is shared to all.
func (g readerGroup) read(sets []readerSet, sock readSocket) {
	if !sock.shared {
		sets[g.reader(sock.position)].add(networkUDP, sock.key.listener, sock.key.index)
		return
	}
	g.give(sets, sock)
}

// give gives a socket to every place that can use it.
func (g readerGroup) give(sets []readerSet, sock readSocket) {
	for place, alive := range g.members {
		if alive {
			sets[place].add(sock.key.network, sock.key.listener, sock.key.index)
		}
	}
}

// reconcile brings every worker nearer to what it is to hold and to read. It
// is called after each change of a generation, worker or socket, and does
// nothing when nothing differs.
func (s *Supervisor) reconcile() {
	s.retireSockets()
	ranked := s.ranked()
	groups := make([]readerGroup, len(ranked))
	for i, g := range ranked {
		handed := g.handing && (g == s.canary || g == s.incoming && g.trial == nil)
		groups[i] = readerGroup{
			listeners: g.mask(), members: g.readers(),
			accepts: (g == s.current || g == s.canary || g == s.incoming && g.trial == nil) && s.stopping == stopNone,
			beside:  handed || g == s.beside,
		}
	}
	for i, sets := range desired(s.readSockets(), groups) {
		s.apply(ranked[i], sets)
	}
	if !s.notify.told {
		s.notifySettled() // there is a current generation, made or taken over
	}
	s.syncStore()
}

// ranked returns the generations that read, best first.
func (s *Supervisor) ranked() (ranked []*generation) {
	add := func(g *generation) {
		if g != nil && !slices.Contains(ranked, g) { // at a stop the current one drains too
			ranked = append(ranked, g)
		}
	}
	add(s.current)
	add(s.canary)
	if g := s.incoming; g != nil && g.handing {
		add(g)
	}
	for _, g := range s.draining() {
		add(g)
	}
	return ranked
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
		if w == nil || w.out == nil || w.state != workerServing && w.state != workerDraining {
			continue
		}
		// One that hangs gets to know when it is back what is different then.
		// Until then it may read beside its stand-in, which does no harm.
		if w.pulse.hung {
			continue
		}
		// A worker whose generation only drains is given nothing new.
		if g == s.current || g == s.incoming || g == s.canary {
			s.giveSockets(w)
		}
		if w.readers.equal(sets[i]) && !w.unsure {
			continue
		}
		w.readers, w.unsure = sets[i], false
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
		if !g.ended() && g.asks(set) && (set.network == networkUDP || g == s.current || g == s.incoming || g == s.canary || !set.released) {
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
