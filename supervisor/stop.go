package supervisor

import (
	"slices"

	"go.uber.org/zap"

	"github.com/holdfast-quic/holdfast/shm"
)

// stop ends the service: gracefully, or faster than it is ending already.
func (s *Supervisor) stop(kind stopKind) {
	if kind <= s.stopping {
		return
	}
	s.stopping = kind
	s.log.Info("stopping", zap.Bool("fast", kind == stopFast))
	s.hub.publish("stop", stopNews{kind == stopFast})
	s.notifyStopping()
	e := genStopOrdered
	if kind == stopFast {
		e = genFastStop
	}
	// No new connections from here on.
	s.seg.Admission().Store(shm.Choice{})
	if s.incoming != nil {
		s.generationEvent(s.incoming, e) // fails its operation too
	}
	if s.op != nil {
		s.finishOp(ErrStopping)
	}
	for _, op := range s.queue {
		s.end(op, ErrStopping)
	}
	s.queue = nil
	for pid := range s.checks {
		s.env.killGroup(pid)
	}
	s.minTimer.stop()
	s.endTrial(ErrStopping)
	s.current, s.beside = nil, nil
	for _, g := range slices.Clone(s.generations) {
		s.generationEvent(g, e)
	}
	s.reconcile()
	s.checkStopped()
}

// checkStopped ends the loop once the last process is gone.
func (s *Supervisor) checkStopped() {
	if s.stopping == stopNone || len(s.generations) > 0 || s.finished {
		return
	}
	s.finished = true
	s.log.Info("stopped")
	for _, waiter := range s.stopWaiters {
		close(waiter)
	}
	s.stopWaiters = nil
}
