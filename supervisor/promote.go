package supervisor

import (
	"fmt"

	"go.uber.org/zap"
)

// requestPromote makes the canary current.
func (s *Supervisor) requestPromote() (*operation, error) {
	switch {
	case s.stopping != stopNone:
		return nil, ErrStopping
	case s.canary == nil && s.incoming != nil && s.incoming.trial != nil:
		return nil, fmt.Errorf("%w: generation %d is %s and not a canary yet", ErrState, s.incoming.id, s.incoming.state)
	case s.canary == nil:
		return nil, fmt.Errorf("%w: there is no canary to promote", ErrState)
	}
	op := s.newOperation(OperationPromote)
	g := s.canary
	op.gen, op.Generation = g, g.id
	if s.op == nil {
		// The upgrade itself has ended, so this one sees to the supervisor.
		s.op = op
		op.self = g.self.hold()
	}
	s.stage(op, StageStarting)
	s.promote(g, op)
	return op, nil
}

// promote begins to hand the sockets to the canary; admit does the rest once
// its workers read them. Nothing has changed for anybody until then.
func (s *Supervisor) promote(g *generation, op *operation) {
	if op != nil {
		g.trial.promoted = append(g.trial.promoted, op)
	}
	if !g.handing {
		s.log.Info("canary is promoted", zap.Uint32("generation", uint32(g.id)))
		s.generationEvent(g, genPromoted)
	}
}

// promoted: the canary is current.
func (s *Supervisor) promoted(g *generation) {
	r := s.report(g)
	r.Verdict = "promoted: " + verdictOf(r)
	for _, op := range g.trial.promoted {
		op.Canary = r
	}
	if op := s.op; op != nil && op.gen == g {
		op.Canary = r
	}
	s.endTrial(nil)
}

// keepTrial: the canary's workers can't take the sockets over. It stays what it
// is.
func (s *Supervisor) keepTrial(g *generation) {
	err := g.reason
	g.reason, g.handing = nil, false
	g.handTimer.stop()
	s.reconcile()
	s.log.Error("canary could not be promoted; it stays a canary", zap.Uint32("generation", uint32(g.id)), zap.Error(err))
	for _, op := range g.trial.promoted {
		if op != s.op {
			s.fail(OperationPromote, err)
			s.end(op, err)
		}
	}
	g.trial.promoted = nil
	if op := s.op; op != nil && op.gen == g {
		op.Canary = s.report(g)
		s.finishOp(err)
	}
}
