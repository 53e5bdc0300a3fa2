package supervisor

import (
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
	"github.com/holdfast-quic/holdfast/packetqueue"
	"github.com/holdfast-quic/holdfast/shm"
)

// answerEvent is a worker that introduces itself after the restore.
type answerEvent struct{ a *answer }

func (e answerEvent) handle(s *Supervisor) {
	s.resumed(e.a)
	s.reconcile()
}

// goOn does what the restore has decided. It is the first thing in the loop.
func (s *Supervisor) goOn(r *restorer) {
	for _, a := range r.p.early {
		s.resumed(a)
	}
	if late := r.p.asked - len(r.p.early); late > 0 {
		go func() {
			for range late {
				s.post(answerEvent{<-r.p.answers})
			}
		}()
	}
	for _, g := range s.generations {
		if g.state == GenerationCanary {
			s.resumeCanary(g)
		}
	}
	s.goOnOperation(r)
	for _, w := range r.dead {
		w.blame(errDiedMeanwhile)
		s.exited(w)
	}
	for w := range s.workers {
		if w.state == workerSpawned && w.conn == nil {
			w.blame(errUndone) // it ends by itself: it has never got what it needs
			s.workerEvent(w, wkSilent)
		}
	}
	for _, g := range r.failed {
		s.generationEvent(g, genStepFailed)
	}
	for _, g := range s.draining() {
		if g.goodbye.IsZero() && g.alive > 0 {
			s.drain(g, g.spec.Drain.Mode, g.spec.Drain.Window, g.spec.Drain.Timeout)
		}
	}
	if g := r.finish; g != nil {
		s.incoming = g
		s.generationEvent(g, genHandedOver)
	} else if s.current != nil {
		s.releaseTCP()
	}
	for _, g := range r.generations {
		s.settle(g)
	}
	s.reconcile()
	for _, slot := range s.slots.inUse() {
		// What was pushed while nobody rang.
		if err := packetqueue.Ring(s.slots.doorbells[slot]); err != nil {
			s.log.Error("ring a doorbell", zap.Uint16("slot", uint16(slot)), zap.Error(err))
		}
	}
	switch {
	case s.current == nil && s.op == nil:
		first := unnumbered(OperationStart)
		first.spec = s.spec
		s.begin(first)
	case s.current != nil && s.current.payload == nil:
		// None of its workers gave its configuration back, so none can be
		// started again.
		s.requestReload(nil)
	}
}

// goOnOperation ends the operation that was under way, or goes on with it when
// its generation is current already.
func (s *Supervisor) goOnOperation(r *restorer) {
	running := s.restoreOperations(r.doc.Operations, r.doc.LastOperation)
	if g := r.finish; g != nil && running != nil && running.Generation == g.id {
		running.gen, running.spec = g, g.spec
		s.op = running
		return
	}
	if r.p.exec && r.p.fault == "" {
		s.op = running // until this program has shown that it works
		s.awaitHealth(running, time.Now())
		return
	}
	s.opt.Resume.healthy()
	s.resumeOperation(running, r.p.fault)
}

// resumed makes the connection that a worker has introduced itself on its
// lifeline, and tells it anew all that is wanted of it.
func (s *Supervisor) resumed(a *answer) {
	if a.err != nil {
		return
	}
	w, protocol, err := s.expected(a)
	if err != nil {
		s.log.Warn("a worker is not taken over", zap.Uint16("slot", uint16(a.slot)), zap.Int("pid", a.m.PID), zap.Error(err))
		a.close(oneLine(err))
		return
	}
	defer a.close("") // the rest of the files; the connection is the worker's
	w.protocol = protocol
	w.gen.ver, w.gen.build = a.m.Version, a.m.BuildID
	w.readersSeq = max(w.readersSeq, a.m.ReadersSeq)
	w.readersDone = w.readersSeq
	w.readers, w.unsure = readerSet{}, true
	w.pulse = pulse{}
	s.attach(w, a.conn)
	a.conn = nil
	w.send(&lifeline.Message{Kind: lifeline.KindResumed, Resumed: &lifeline.Resumed{Protocol: protocol}})
	s.ownDoorbell(w, a)
	w.sockets = map[socketKey]bool{}
	for _, sock := range a.m.Sockets {
		key := socketKey{sock.Listener, sock.Network, sock.Index}
		if s.sockets.has(key) {
			w.sockets[key] = true
		} else {
			w.send(&lifeline.Message{Kind: lifeline.KindDropSocket, Socket: &sock})
		}
	}
	s.introduceAll(w)
	s.log.Info("worker taken over", w.fields()...)
	s.hub.publish("worker", workerNews{"taken over", w.gen.id, w.slot, w.incarnation, w.proc.PID(), ""})
	s.wantOf(w, a.m)
}

var errStranger = errors.New("nothing is known of it")

// expected returns the worker that an answer is of, or why it can't be one.
func (s *Supervisor) expected(a *answer) (*worker, int, error) {
	var w *worker
	if int(a.slot) < len(s.slots.owners) {
		w = s.slots.owners[a.slot]
	}
	switch {
	case w == nil, uint32(w.incarnation) != a.m.Incarnation, uint32(w.gen.id) != a.m.Generation, w.proc.PID() != a.m.PID, w.state == workerGone:
		return nil, 0, errStranger
	case w.conn != nil:
		return nil, 0, fmt.Errorf("%w: it introduces itself twice", errProtocol)
	case a.files[resumeSegment] != nil && !sameDescriptor(a.files[resumeSegment], s.seg.File()):
		return nil, 0, fmt.Errorf("%w: it uses another segment", errProtocol)
	}
	protocol, err := agree(a.m)
	return w, protocol, err
}

// agree returns the version of the lifeline's protocol to speak with a worker, or
// why this build can't be its supervisor.
func agree(m *lifeline.Resume) (protocol int, err error) {
	if m.ABIMajor != shm.ABIMajor {
		return 0, fmt.Errorf("%w: the worker has %d.%d, this supervisor %d.%d", shm.ErrABIVersion, m.ABIMajor, m.ABIMinor, shm.ABIMajor, shm.ABIMinor)
	}
	return lifeline.NegotiateResume(m)
}

// ownDoorbell sees to it that what everybody rings is what the worker waits for.
func (s *Supervisor) ownDoorbell(w *worker, a *answer) {
	f := a.files[resumeDoorbell]
	if f == nil {
		return // it is in use already
	}
	a.files[resumeDoorbell] = nil
	bell, err := unpolled(f)
	if err != nil {
		w.blame(err)
		s.workerEvent(w, wkSilent)
		return
	}
	old := s.slots.doorbells[w.slot]
	s.slots.doorbells[w.slot] = bell
	for other := range s.workers {
		if other != w && other.peers != nil {
			delete(other.peers, w.slot)
		}
	}
	s.introduce(w)
	if old != nil {
		// Probes and messages on their way may still use it.
		s.after(lastWords, func() { old.Close() })
	}
}

// introduceAll gives the worker everybody's doorbell, also those that it has: it
// can't be known which they are.
func (s *Supervisor) introduceAll(w *worker) {
	w.peers, w.peersOpen = map[shm.SlotID]bool{w.slot: true}, 0
	for _, slot := range s.slots.inUse() {
		if slot != w.slot {
			w.peers[slot] = true
			w.peersOpen++
			w.send(&lifeline.Message{Kind: lifeline.KindPeer, Peer: &lifeline.Peer{Slot: uint16(slot)}}, s.slots.doorbells[slot])
		}
	}
}

// wantOf goes on with the worker from where it is.
func (s *Supervisor) wantOf(w *worker, m *lifeline.Resume) {
	if w.state == workerSpawned {
		w.state = workerWelcomed
		s.armReady(w, time.Until(w.started.Add(w.gen.spec.ReadyTimeout)))
	}
	switch w.state {
	case workerServing:
		if m.Draining && w.protocol >= lifeline.ProtocolHandover { // its drain was taken back, and it has not heard
			w.send(&lifeline.Message{Kind: lifeline.KindUndrain})
		}
	case workerWelcomed:
		if m.Ready {
			s.workerEvent(w, wkReady)
		}
	case workerReady:
		s.ready(w) // its probe has ended with the supervisor that made it
	case workerDraining:
		s.workerEvent(w, wkDrain)
	case workerStopping:
		if left := time.Until(w.graceEnd) - killSlack; left > 0 {
			w.send(&lifeline.Message{Kind: lifeline.KindStop, Stop: &lifeline.Stop{Grace: left}})
		}
	case workerKilled:
		s.kill(w)
	default:
	}
}

// has reports whether there is such a socket.
func (s *sockets) has(key socketKey) bool {
	if int(key.listener) >= len(s.listeners) || s.listeners[key.listener] == nil {
		return false
	}
	for _, set := range s.listeners[key.listener].sets {
		for _, sock := range set.sockets {
			if sock.key() == key {
				return true
			}
		}
	}
	return false
}
