package supervisor

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
	"github.com/holdfast-quic/holdfast/shm"
)

var errAsked = errors.New("as asked for")

// requestRollback ends the canary, or returns to the generation before the
// current one. New connections have turned back when it returns.
func (s *Supervisor) requestRollback() (*operation, error) {
	if s.stopping != stopNone {
		return nil, ErrStopping
	}
	if s.canary != nil {
		op := s.newOperation(OperationRollback)
		op.Generation = s.current.id
		s.stage(op, StageStarting)
		op.Canary = s.rollBackCanary(errAsked)
		s.end(op, nil)
		return op, nil
	}
	p := s.probation
	if p != nil && (s.current == nil || s.current.id != p.generation) {
		p = nil
	}
	switch {
	case s.op != nil && p != nil && s.op.ID == p.operation && s.op.Stage == StageSettling:
		return s.goBack(errAsked), nil
	case s.op != nil:
		return nil, fmt.Errorf("%w: a %s is under way: roll back when it has ended", ErrState, s.op.Kind)
	}
	_, err := s.previous()
	if err != nil && p == nil {
		return nil, err
	}
	op := s.newOperation(OperationRollback)
	if err != nil {
		// That generation has nothing left, but all that it takes to start
		// another one like it is still there.
		op.spec, op.image, op.self = p.spec, p.image.hold(), p.self.hold()
		s.endProbation()
	}
	s.begin(op)
	return op, nil
}

// linger lets the idle workers of the generation that an upgrade supersedes stay
// for the time of the probation: a rollback finds them then. Those before it need
// not stay any longer.
func (s *Supervisor) linger(old *generation, probation time.Duration) {
	for _, g := range s.draining() {
		if time.Now().Before(g.linger) {
			g.linger = time.Time{}
			for w := range g.workers {
				s.workerEvent(w, wkDrain)
			}
		}
	}
	if op := s.op; op != nil && (op.Kind == OperationUpgrade || op.Kind == OperationPromote) && probation > 0 {
		old.linger = time.Now().Add(probation)
	}
}

// canTurnBack reports whether the generation before the current one lives.
func (s *Supervisor) canTurnBack() bool {
	_, err := s.previous()
	return err == nil
}

// rollBackCanary turns new connections back to the current generation, by one
// store, and lets the canary drain. Nobody's connections are touched.
func (s *Supervisor) rollBackCanary(why error) *CanaryReport {
	g := s.canary
	r := s.report(g)
	r.Verdict = "rolled back: " + oneLine(why)
	if r.Fault == "" || r.Fault != oneLine(why) {
		r.Verdict += "; " + verdictOf(r)
	} else {
		r.Verdict += fmt.Sprintf(": canary %s; current %s", r.Canary, r.Current)
	}
	s.seg.Admission().Store(shm.Choice{Current: s.current.id})
	err := fmt.Errorf("generation %d was rolled back: %w", g.id, why)
	s.endTrial(err)
	s.counts.rollbacks++
	s.generationEvent(g, genRolledBack)
	s.log.Info("canary was rolled back", zap.Uint32("generation", uint32(g.id)), zap.String("verdict", r.Verdict))
	s.hub.publish("rollback", rollbackNews{g.id, s.current.id, oneLine(why)})
	if op := s.op; op != nil && op.gen == g {
		op.Canary = r
		s.finishOp(err)
	}
	return r
}

// rollbackNews is published when new connections turn back.
type rollbackNews struct {
	From   shm.Generation `json:"from"`
	To     shm.Generation `json:"to"`
	Reason string         `json:"reason"`
}

// previous returns the generation that was current before the one that is, or
// says why there is no way back to it.
func (s *Supervisor) previous() (*generation, error) {
	g := s.current
	switch {
	case g == nil:
		return nil, fmt.Errorf("%w: no generation is current", ErrState)
	case g.before == 0:
		return nil, fmt.Errorf("%w: generation %d was the first: there is none to return to", ErrState, g.id)
	}
	i := slices.IndexFunc(s.generations, func(o *generation) bool { return o.id == g.before })
	if i < 0 {
		return nil, fmt.Errorf("%w: generation %d, which was current before, has ended: upgrade to the program that you want", ErrState, g.before)
	}
	old := s.generations[i]
	for w := range old.workers {
		if w.state == workerDraining && old.state == GenerationDraining && w.protocol >= lifeline.ProtocolHandover {
			return old, nil
		}
	}
	return nil, fmt.Errorf("%w: generation %d, which was current before, is about to end: upgrade to the program that you want", ErrState, g.before)
}

// turnBack makes the generation before the current one current again, for an
// operation, which it ends.
func (s *Supervisor) turnBack(op *operation) {
	s.stage(op, StageStarting)
	old, err := s.previous()
	if err == nil {
		err = s.bindAll(old) // what only it asks for may have been closed
	}
	if err != nil {
		s.finishOp(err)
		return
	}
	op.gen, op.Generation = old, old.id
	if op.self == nil {
		op.self = old.self.hold()
	}
	s.generationEvent(old, genRestored)
}

// restoreGeneration ends the drain of g and makes it current again:
//
//  1. its workers may be admitted to, and one store turns new connections to
//     them; their packets come through their queues;
//  2. they read the sockets, and places that are empty get a process;
//  3. the generation that was current drains, and stops to read once they do.
func (s *Supervisor) restoreGeneration(g *generation) {
	newer := s.current
	g.timer.stop()
	g.timer, g.evicted = nil, false
	g.mode, g.window = g.spec.Drain.Mode, g.spec.Drain.Window
	g.limits, g.deadline, g.linger = nil, time.Time{}, time.Time{}
	for w := range g.workers {
		s.workerEvent(w, wkUndrain)
	}
	s.seg.Admission().Store(shm.Choice{Current: g.id})
	s.current, s.spec, s.beside = g, g.spec, newer
	s.releaseTCP()
	for _, m := range g.members {
		if m.w != nil && m.w.state == workerServing {
			continue
		}
		m.w = nil // what is left of it only has to end
		if err := s.spawn(g, m); err != nil {
			s.replace(g, m, err)
		}
	}
	g.handTimer.stop()
	g.handTimer = s.after(handoverTimeout, s.endBeside)
	s.generationEvent(newer, genSuperseded)
	s.reconcile()
	s.checkBeside()
	if err := s.inst.writePID(g.spec.PIDFile); err != nil {
		s.log.Error("write the PID file", zap.Error(err))
	}
	s.log.Info("generation is current again", zap.Uint32("generation", uint32(g.id)), zap.Uint32("rolled_back", uint32(newer.id)))
	s.hub.publish("rollback", rollbackNews{newer.id, g.id, ""})
	if s.op != nil && s.op.gen == g {
		s.admitted(s.op, newer)
	}
}

// checkBeside lets the generation that was rolled back stop to read once the
// current one reads.
func (s *Supervisor) checkBeside() {
	if s.beside == nil || s.current == nil {
		return
	}
	for w := range s.current.workers {
		if w.state == workerServing && !w.pulse.hung && w.readersDone != w.readersSeq {
			return
		}
	}
	s.endBeside()
}

func (s *Supervisor) endBeside() {
	if s.beside == nil {
		return
	}
	s.beside = nil
	if s.current != nil {
		s.current.handTimer.stop()
	}
	s.reconcile()
}
