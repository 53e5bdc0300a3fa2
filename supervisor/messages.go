package supervisor

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"go.uber.org/zap"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
	"github.com/holdfast-quic/holdfast/shm"
)

var errProtocol = errors.New("it broke the lifeline protocol")

// message handles what a worker says. Nothing that it says is trusted further
// than its own fate goes.
func (s *Supervisor) message(w *worker, m *lifeline.Message) {
	if w.state == workerGone {
		return
	}
	switch m.Kind {
	case lifeline.KindHello:
		s.hello(w, m.Hello)
	case lifeline.KindReady:
		if w.state < workerWelcomed {
			w.blame(fmt.Errorf("%w: ready before welcome", errProtocol))
		}
		s.workerEvent(w, wkReady)
	case lifeline.KindReadersSet:
		w.readersDone = max(w.readersDone, min(m.ReadersSet.Seq, w.readersSeq))
		s.checkHandover()
	case lifeline.KindPeerSet:
		if w.peersOpen > 0 {
			w.peersOpen--
		}
		s.checkHandover()
	case lifeline.KindNonceRequest:
		s.leaseNonces(w)
	case lifeline.KindConnsReply:
		s.connsReply(w, m.ConnsReply)
	case lifeline.KindFailed:
		w.blame(errors.New(m.Failed.Reason))
		s.workerEvent(w, wkFailed)
	case lifeline.KindDrained:
		w.drained = true
		s.workerEvent(w, wkDrained)
	default:
		// Of a newer minor version of the protocol, or meaningless here.
		s.log.Debug("message ignored", append(w.fields(), zap.String("kind", string(m.Kind)))...)
	}
}

func (s *Supervisor) hello(w *worker, h *lifeline.Hello) {
	var err error
	if w.protocol, err = lifeline.Negotiate(h); err != nil {
		w.blame(err)
		s.workerEvent(w, wkBadHello)
		return
	}
	if h.ABIMajor != shm.ABIMajor {
		w.blame(fmt.Errorf("%w: the worker has %d.%d, this supervisor %d.%d", shm.ErrABIVersion, h.ABIMajor, h.ABIMinor, shm.ABIMajor, shm.ABIMinor))
		s.workerEvent(w, wkBadHello)
		return
	}
	if w.state != workerSpawned {
		w.blame(fmt.Errorf("%w: a second hello", errProtocol))
	}
	if h.ABIMajor == shm.ABIMajor && h.ABIMinor < turnsMinor {
		w.gen.noTurns = true
		if w.gen.trial != nil {
			w.blame(fmt.Errorf("%w: its workers have segment ABI %d.%d", errNoTurns, h.ABIMajor, h.ABIMinor))
			s.workerEvent(w, wkBadHello)
			return
		}
	}
	w.gen.ver, w.gen.build = h.Version, h.BuildID
	s.workerEvent(w, wkHello)
}

// welcome gives the worker all that it needs: names, keys and descriptors.
func (s *Supervisor) welcome(w *worker) {
	g := w.gen
	lease, err := s.keys.lease()
	if err != nil {
		w.blame(err)
		s.workerEvent(w, wkSilent)
		return
	}
	m := &lifeline.Welcome{
		Protocol: w.protocol, Slot: uint16(w.slot), Incarnation: uint32(w.incarnation), Generation: uint32(g.id),
		ConfigHash: g.spec.ConfigHash, Workers: len(g.members), MaxProcs: g.spec.MaxProcs,
		Keys: s.keys.keys(), Nonces: lease,
	}
	for _, want := range g.wants {
		m.Listeners = append(m.Listeners, lifeline.Listener{
			ID: want.listener.id, Name: want.spec.Name, QUIC: want.spec.QUIC, TCP: want.spec.TCP,
		})
	}
	files := []*os.File{s.seg.File(), g.payload, s.slots.doorbells[w.slot]}
	w.peers = map[shm.SlotID]bool{w.slot: true}
	for i, other := range s.slots.owners {
		slot := shm.SlotID(i)
		if other != nil && other != w {
			w.peers[slot] = true
			m.Peers = append(m.Peers, uint16(slot))
			files = append(files, s.slots.doorbells[slot])
		}
	}
	w.sockets = map[socketKey]bool{}
	for _, sock := range s.socketsFor(g) {
		w.sockets[sock.key()] = true
		m.Sockets = append(m.Sockets, sock.describe(!g.asks(sock.set)))
		files = append(files, sock.file)
	}
	if w.protocol >= lifeline.ProtocolHandover {
		if handover := s.slots.openHandover(w.slot); handover != nil {
			m.Handover, m.OrphanTimeout = true, g.spec.OrphanTimeout
			files = append(files, handover)
		}
	}
	w.send(&lifeline.Message{Kind: lifeline.KindWelcome, Welcome: m}, files...)
	s.introduce(w)
}

// introduce gives the doorbell of a new worker to those that do not have it.
func (s *Supervisor) introduce(w *worker) {
	for other := range s.workers {
		if other == w || !other.welcomed() || other.peers[w.slot] {
			continue
		}
		other.peers[w.slot] = true
		other.peersOpen++
		other.send(&lifeline.Message{Kind: lifeline.KindPeer, Peer: &lifeline.Peer{Slot: uint16(w.slot)}}, s.slots.doorbells[w.slot])
	}
}

// ready: the worker says that it can serve.
func (s *Supervisor) ready(w *worker) {
	g := w.gen
	if g.state == GenerationStarting {
		// All together, when all are ready.
		if g.every(func(o *worker) bool { return o.state >= workerReady && o.state < workerDraining }) {
			s.generationEvent(g, genAllReady)
		}
		return
	}
	s.startProbe(w)
}

// serving: the worker has been proven.
func (s *Supervisor) serving(w *worker) {
	g := w.gen
	switch g.state {
	case GenerationReady:
		if g.every(func(o *worker) bool { return o.state == workerServing }) {
			s.generationEvent(g, genAllProbed)
		}
	case GenerationCanary, GenerationCurrent:
		// A replacement: it gets its share of the sockets back.
		s.log.Info("worker replaced", w.fields()...)
		s.reconcile()
		s.seg.Directory().SetServing(w.slot, true)
	}
}

func (s *Supervisor) leaseNonces(w *worker) {
	lease, err := s.keys.lease()
	if err != nil {
		// The worker can serve on until its nonces are used up, and asks again.
		s.log.Error("lease nonces", append(w.fields(), zap.Error(err))...)
		return
	}
	if w.welcomed() {
		w.send(&lifeline.Message{Kind: lifeline.KindNonceLease, NonceLease: &lease})
	}
}

// socketsFor returns the sockets that a worker of g is to hold: those of its
// listeners, on whatever address they are now. The first of each set come
// first.
func (s *Supervisor) socketsFor(g *generation) []*listenSocket {
	var out []*listenSocket
	for _, want := range g.wants {
		for _, set := range want.listener.sets {
			if set.network == networkUDP && want.spec.QUIC || set.network == networkTCP && want.spec.TCP {
				out = append(out, set.sockets...)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b *listenSocket) int { return a.index - b.index })
	return out
}
