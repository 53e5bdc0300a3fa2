package supervisor

import (
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/holdfast-quic/holdfast/shm"
)

const (
	// handoverTimeout bounds how long workers may take to start reading.
	handoverTimeout = 5 * time.Second
	// peerPatience is how long the handover waits for the current generation
	// to know the new workers' doorbells. One that is stopped must not hold
	// it up; what it then pushes without ringing waits for the next ring.
	peerPatience = time.Second
)

// startHandover lets the new workers read, beside the old ones:
//
//  1. bind what is missing;
//  2. send the new workers sockets and readers, wait for all to acknowledge;
//  3. store the admission word: from here on new connections are theirs;
//  4. the old workers stop reading and drain.
//
// Until step 3 a failure costs nothing: the old workers never stopped.
func (s *Supervisor) startHandover(g *generation) {
	if err := s.bindAll(g); err != nil {
		g.reason = err
		s.generationEvent(g, genStepFailed)
		return
	}
	g.handing, g.patient = true, s.current != nil
	g.handTimer.stop()
	g.handTimer = s.after(handoverTimeout, func() {
		g.reason = fmt.Errorf("%w: a worker did not start to read within %v", ErrTimeout, handoverTimeout)
		s.generationEvent(g, genStepFailed)
	})
	s.after(peerPatience, func() {
		g.patient = false
		s.checkHandover()
	})
	s.reconcile()
	s.checkHandover()
}

// checkHandover goes on once everybody has acknowledged.
func (s *Supervisor) checkHandover() {
	s.checkBeside()
	g := s.incoming
	if g == nil {
		g = s.canary
	}
	if g == nil || !g.handing || g.state != GenerationProbed && g.state != GenerationCanary {
		return
	}
	if !g.every(func(w *worker) bool {
		return w.state == workerServing && w.readersDone == w.readersSeq && w.peersOpen == 0
	}) {
		return
	}
	if g.patient && s.current != nil {
		for w := range s.current.workers {
			if w.state == workerServing && w.peersOpen > 0 {
				return
			}
		}
	}
	if g.trial != nil && g.state == GenerationProbed {
		s.generationEvent(g, genShares)
		return
	}
	s.generationEvent(g, genHandedOver)
}

// admit makes g current by one store, and the one before it drain.
func (s *Supervisor) admit(g *generation) {
	g.handTimer.stop()
	for w := range g.workers {
		s.seg.Directory().SetServing(w.slot, true)
	}
	s.seg.Admission().Store(shm.Choice{Current: g.id})
	old := s.current
	if g == s.canary {
		s.promoted(g)
	}
	if old != nil {
		g.before = old.id
		s.linger(old, g.spec.Probation)
	}
	s.current, s.incoming, s.beside, s.spec = g, nil, nil, g.spec
	g.handing = false
	s.releaseTCP()
	if old != nil {
		s.generationEvent(old, genSuperseded)
	}
	s.reconcile()
	if err := s.inst.writePID(g.spec.PIDFile); err != nil {
		s.log.Error("write the PID file", zap.Error(err))
	}
	s.log.Info("generation is current", zap.Uint32("generation", uint32(g.id)), zap.String("config_hash", g.spec.ConfigHash))
	if s.op != nil && s.op.gen == g {
		s.admitted(s.op, old)
	}
}
