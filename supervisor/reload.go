package supervisor

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"
)

// requestReload starts a reload or joins the one that comes next. The waiter,
// if any, has room for one result. Nil says that the service is stopping.
func (s *Supervisor) requestReload(waiter chan<- error) *operation {
	if s.canary != nil && s.stopping == stopNone {
		op := s.newOperation(OperationReload)
		if waiter != nil {
			op.waiters = append(op.waiters, waiter)
		}
		s.notifyReloading()
		s.failed(op, s.errCanary())
		s.end(op, s.errCanary())
		s.notifySettled()
		return op
	}
	if s.stopping != stopNone {
		if waiter != nil {
			waiter <- ErrStopping
		}
		return nil
	}
	var op *operation
	if s.op != nil && s.op.waiting && s.op.Kind == OperationReload {
		op = s.op
		op.stale = true
	} else if i := slices.IndexFunc(s.queue, func(o *operation) bool { return o.Kind == OperationReload }); i >= 0 {
		op = s.queue[i]
	}
	if op == nil {
		op = s.newOperation(OperationReload)
		s.queue = append(s.queue, op)
	} else {
		op.Merged++
		s.counts.reloadsMerged++
	}
	if waiter != nil {
		op.waiters = append(op.waiters, waiter)
	}
	s.notifyReloading()
	s.nextOp()
	return op
}

// nextOp begins what waits longest, if nothing is under way. A reload has to
// keep the minimum interval too.
func (s *Supervisor) nextOp() {
	if len(s.queue) == 0 || s.op != nil || s.stopping != stopNone {
		return
	}
	op := s.queue[0]
	if op.Kind == OperationReload {
		if wait := s.spec.MinInterval - time.Since(s.lastReload); wait > 0 && !s.lastReload.IsZero() {
			s.minTimer.stop()
			s.minTimer = s.after(wait, s.nextOp)
			return
		}
		s.lastReload = time.Now()
	}
	s.queue = slices.Delete(s.queue, 0, 1)
	s.begin(op)
}

// begin makes op the one that is under way.
func (s *Supervisor) begin(op *operation) {
	s.op = op
	switch {
	case op.Kind == OperationUpgrade:
		s.beginUpgrade(op)
	case op.Kind == OperationRollback && s.canTurnBack():
		s.turnBack(op)
	case op.spec != nil:
		s.prepare(op)
	default:
		s.loadAside(op)
	}
}

// loadAside reads the configuration without holding up the loop.
func (s *Supervisor) loadAside(op *operation) {
	s.stage(op, StageLoading)
	s.background.Go(func() {
		spec, err := s.load()
		s.post(loadedEvent{op, spec, err})
	})
}

func (s *Supervisor) loaded(op *operation, spec *Spec, err error) {
	if s.op != op {
		return // the service is stopping
	}
	if err != nil {
		s.finishOp(err)
		return
	}
	op.spec = spec
	if op.Kind == OperationUpgrade {
		s.chosen(op)
		return
	}
	s.prepare(op)
}

// prepare starts the generation as soon as there is room for it.
func (s *Supervisor) prepare(op *operation) {
	if op.Kind == OperationUpgrade {
		s.keepDefaults(op)
	}
	if key := restartKey(s.spec, op.spec); key != "" {
		s.finishOp(restartNeeded(key))
		return
	}
	s.hintLanes(op.spec)
	s.hintMemory(op.spec)
	s.hintLowPorts()
	if op.waiting = op.Kind != OperationRollback && !s.hasRoom(op.spec.Drain); op.waiting {
		s.stage(op, StageRoom)
		return
	}
	if op.stale {
		op.stale = false
		s.loadAside(op)
		return
	}
	wants, err := s.sockets.register(op.spec.Listeners, op.spec.Strict)
	if err == nil {
		err = s.checkLimits(op.spec, wants)
	}
	if err != nil {
		s.finishOp(err)
		return
	}
	s.startGeneration(op, wants)
}

// hasRoom reports whether another generation may start to drain, and makes
// room if the policy is to evict.
func (s *Supervisor) hasRoom(d DrainSpec) bool {
	for _, g := range s.generations {
		if g.state == GenerationFailed {
			return false // its processes are about to end, and hold sockets until then
		}
	}
	if s.current == nil {
		return true
	}
	draining := s.draining()
	excess := len(draining) + 1 - d.MaxGenerations
	if excess <= 0 {
		return true
	}
	if d.Overflow == OverflowEvict {
		for _, g := range draining[len(draining)-min(excess, len(draining)):] {
			if !g.evicted {
				g.evicted = true
				s.log.Info("generation is ended early to make room", zap.Uint32("generation", uint32(g.id)))
				s.generationEvent(g, genEvicted)
			}
		}
	} else {
		s.log.Info("reload waits for a draining generation to end",
			zap.Int("draining", len(draining)), zap.Int("max_generations", d.MaxGenerations))
	}
	return false
}

// checkLimits refuses what would run out of worker slots or descriptors on
// the way.
func (s *Supervisor) checkLimits(spec *Spec, wants []wanted) error {
	if free := s.slots.free(); free < spec.Workers {
		return fmt.Errorf("%w: worker slots would run out: %d needed, %d free of %d",
			ErrLimit, spec.Workers, free, s.seg.Geometry().Slots)
	}
	if err := checkMemory(s.env, spec, s.seg.Geometry()); err != nil {
		return err
	}
	used, limit, err := s.env.files()
	if err != nil {
		s.log.Warn("the number of open files is unknown", zap.Error(err))
		return nil
	}
	sockets, held := 0, 0
	for _, w := range wants {
		if w.spec.QUIC {
			have := 0
			if set := w.listener.set(networkUDP, w.address); set != nil {
				have = len(set.sockets)
			}
			sockets += max(spec.Workers-have, 0)
			held += have
		}
		if w.spec.TCP && w.listener.set(networkTCP, w.address) == nil {
			sockets++
		}
	}
	// Per worker: lifeline, pidfd, doorbell, the probe's socket, and for a
	// moment the child's end of the lifeline. Half a dozen for the admin API.
	const perWorker, spare = 5, 12
	if need := sockets + perWorker*spec.Workers + spare; used+need > limit {
		return fmt.Errorf("%w: file descriptors would run out: %d needed, %d free of %d", ErrLimit, need, max(limit-used, 0), limit)
	}
	// A worker has two descriptors per UDP socket, one per TCP socket, a
	// doorbell of everybody, and a few dozen of its own.
	const workerSpare = 32
	if spec.NoFile > 0 {
		limit = int(spec.NoFile)
	}
	if need := 2*(held+sockets) + s.seg.Geometry().Slots - s.slots.free() + spec.Workers + workerSpare; need > limit {
		return fmt.Errorf("%w: file descriptors of a worker would run out: %d needed of %d, before any client", ErrLimit, need, limit)
	}
	return nil
}

// finishOp ends the operation that is under way and tells who waits for it.
func (s *Supervisor) finishOp(err error) {
	op := s.op
	s.op = nil
	switch {
	case err == nil:
		s.succeeded(op)
	case op.Kind == OperationStart:
		s.startFailed(err)
	default:
		s.failed(op, err)
	}
	if err != nil {
		s.reconcile() // forget listeners that only it knew
	}
	s.end(op, err)
	s.notifySettled()
	s.after(0, s.nextOp)
}

func (s *Supervisor) succeeded(op *operation) {
	switch op.Kind {
	case OperationReload:
		s.counts.reloadsOK++
		s.hub.publish("reload", reloadNews{"ok", uint32(op.Generation), ""})
	case OperationUpgrade:
		if !op.merged {
			s.counts.upgradesOK++
		}
		if s.probation != nil && s.probation.until.IsZero() {
			s.endProbation()
		}
	case OperationRollback:
		s.counts.rollbacks++
	}
	s.noteGood()
}

func (s *Supervisor) failed(op *operation, err error) {
	switch op.Kind {
	case OperationReload:
		s.counts.reloadsFailed++
		s.hub.publish("reload", reloadNews{"failed", 0, oneLine(err)})
	case OperationUpgrade:
		s.counts.upgradesFailed++
	}
	s.log.Error(op.Kind+" failed", zap.Uint64("operation", op.ID), zap.String("reason", oneLine(err)))
	s.fail(op.Kind, err)
}

// startFailed tries the first generation again, unless that makes no sense or
// was tried often enough.
func (s *Supervisor) startFailed(err error) {
	if s.stopping != stopNone {
		return
	}
	s.fail("start", err)
	s.startTries++
	pause := s.startBack.next(time.Now())
	switch {
	case errors.Is(err, ErrConfig), errors.Is(err, ErrAddressInUse), errors.Is(err, ErrLimit):
		s.giveUp(err)
		return
	case s.startTries >= s.spec.StartTries:
		s.giveUp(s.withLastGood(fmt.Errorf("no generation could be started in %d tries: %w", s.startTries, err)))
		return
	}
	s.log.Warn("start failed", zap.Int("try", s.startTries), zap.Int("of", s.spec.StartTries),
		zap.Duration("pause", pause), zap.String("reason", oneLine(err)))
	s.after(pause, s.startAgain)
}

func (s *Supervisor) startAgain() {
	if s.stopping == stopNone {
		s.begin(unnumbered(OperationStart))
	}
}

// giveUp ends the service with an error.
func (s *Supervisor) giveUp(err error) {
	s.stopped = err
	s.log.Error("giving up", zap.String("reason", oneLine(err)))
	s.after(0, func() { s.stop(stopFast) })
}
