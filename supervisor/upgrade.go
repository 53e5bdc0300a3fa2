package supervisor

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"go.uber.org/zap"
)

// maxQueue bounds the operations that wait. Equal ones are merged, so that only
// upgrades to many different programs come this far.
const maxQueue = 16

// An upgrade, step by step; what fails before the fourth costs nothing:
//
//  1. The program is opened as it lies on disk now. From here on this very file
//     is meant, whatever happens to its path.
//  2. It verifies: it reads the configuration and looks at the state and at the
//     segment, in a process of its own.
//  3. A generation of workers from it starts, is proven and takes over, exactly
//     as at a reload. The old supervisor does all of this.
//  4. The supervisor becomes the new program, in the same process. Should that
//     not do, it becomes the old one again and the old generation with it.
//
// With worker.command two programs are involved. Both are opened as they lie on
// disk; the supervisor's is left alone when it has not changed and is not named.

// requestUpgrade starts an upgrade, or joins one that has not begun and is to do
// the same, or queues it.
func (s *Supervisor) requestUpgrade(r UpgradeRequest) (*operation, error) {
	if s.stopping != stopNone {
		return nil, ErrStopping
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	if err := s.errCanary(); err != nil {
		return nil, err
	}
	if r.Canary > 0 && s.current != nil && s.current.noTurns {
		return nil, fmt.Errorf("%w: generation %d: upgrade without one first", errNoTurns, s.current.id)
	}
	for _, op := range s.queue {
		if op.Kind == OperationUpgrade && *op.Upgrade == r {
			op.Merged++
			s.counts.upgradesMerged++
			return op, nil
		}
	}
	if len(s.queue) >= maxQueue {
		return nil, fmt.Errorf("%w: %d operations wait already", ErrBusy, len(s.queue))
	}
	op := s.newOperation(OperationUpgrade)
	op.Upgrade = &r
	s.queue = append(s.queue, op)
	s.log.Info("upgrade asked for", zap.Uint64("operation", op.ID), zap.String("program", cmp.Or(r.Binary, s.program)), zap.Bool("waits", s.op != nil))
	s.nextOp()
	return op, nil
}

func (r *UpgradeRequest) check() error {
	switch {
	case r.Binary != "" && !filepath.IsAbs(r.Binary):
		return fmt.Errorf("%w: binary: found %q, expected an absolute path", ErrUsage, r.Binary)
	case r.Canary < 0 || r.Canary >= 100:
		return fmt.Errorf("%w: canary: found %v, expected a percentage below 100", ErrUsage, r.Canary)
	case r.Soak < 0:
		return fmt.Errorf("%w: soak: found %v, expected no negative time", ErrUsage, r.Soak)
	case r.Canary == 0 && (r.Soak > 0 || r.Auto):
		return fmt.Errorf("%w: soak and auto are about a canary, and none is asked for", ErrUsage)
	}
	return nil
}

// openedEvent: the programs of an upgrade have been opened, or not.
type openedEvent struct {
	op     *operation
	self   *image // nil: the supervisor stays as it is
	worker *image // nil: the same, or not known yet
	err    error
}

// beginUpgrade opens what is to be run, without holding up the loop: a path may
// lead to a file system that does not answer.
func (s *Supervisor) beginUpgrade(op *operation) {
	s.stage(op, StageVerifying)
	command, named, path := s.spec.Command, op.Upgrade.Binary, cmp.Or(op.Upgrade.Binary, s.program)
	own := s.self.hold()
	s.background.Go(func() {
		e := openedEvent{op: op}
		if len(command) > 0 && named != "" && isCommand(named, command) {
			e.worker, e.err = openImage(named)
			s.post(e)
			return
		}
		e.self, e.err = openImage(path)
		switch {
		case e.err != nil:
			if len(command) > 0 && named == "" {
				e.err = nil // it has not been replaced by another
			}
		case len(command) > 0 && named == "" && e.self.same(own):
			e.self.release()
			e.self = nil
		default:
			if e.err = e.self.checkNative(); e.err != nil {
				e.self.release()
				e.self = nil
			}
		}
		s.post(e)
	})
}

// isCommand reports whether a path is that of the workers' own program.
func isCommand(path string, command []string) bool {
	program, err := absoluteProgram(command[0])
	return err == nil && filepath.Clean(path) == program
}

func (e openedEvent) handle(s *Supervisor) {
	s.self.release() // held while it was compared
	op := e.op
	if s.op != op {
		e.self.release()
		e.worker.release()
		return // the service is stopping
	}
	op.self, op.image = e.self, e.worker
	if e.err != nil {
		s.finishOp(e.err)
		return
	}
	if op.self == nil {
		s.loadAside(op) // this program stays, and reads the configuration
		return
	}
	if len(s.opt.Verify) == 0 {
		s.finishOp(fmt.Errorf("%w: this program can't verify another", ErrState))
		return
	}
	if err := s.startCheck(op, s.opt.Verify); err != nil {
		s.finishOp(err)
	}
}

// verified: the new program has said what it thinks.
func (s *Supervisor) verified(op *operation, v *verdict, err error) {
	if s.op != op {
		return // the service is stopping
	}
	if err == nil {
		err = s.acceptable(v)
	}
	if err != nil {
		s.finishOp(err)
		return
	}
	op.Version, op.BuildID = v.Version, v.BuildID
	if v.LowPorts != nil && !*v.LowPorts && bindsLowPorts() && op.Warning == "" {
		op.Warning = losesLowPorts
		s.log.Warn(losesLowPorts, zap.Uint64("operation", op.ID), zap.String("program", op.self.path), zap.String("hint", lowPortsCure))
	}
	if !op.tried && len(s.opt.Rehearse) > 0 {
		// A program that can verify may still not come up as a supervisor.
		op.tried = true
		if err := s.startCheck(op, s.opt.Rehearse); err != nil {
			s.finishOp(err)
		}
		return
	}
	spec, err := v.Spec.withDefaults()
	if err != nil {
		s.finishOp(configError{err})
		return
	}
	s.log.Info("program verified", zap.Uint64("operation", op.ID), zap.String("program", op.self.path),
		zap.String("version", v.Version), zap.String("build_id", v.BuildID))
	op.spec = spec
	s.chosen(op)
}

// chosen: supervisor and configuration of an upgrade are known. What is missing
// is the program of the workers.
func (s *Supervisor) chosen(op *operation) {
	switch {
	case op.image != nil:
	case len(op.spec.Command) == 0:
		op.image = cmp.Or(op.self, s.self).hold()
	default:
		var err error
		if op.image, err = openCommand(op.spec.Command); err != nil {
			s.finishOp(err)
			return
		}
	}
	if s.alreadyServes(op) {
		s.log.Info("upgrade merged with the one before", zap.Uint64("operation", op.ID))
		s.counts.upgradesMerged++
		op.merged = true
		op.Generation = s.current.id
		s.finishOp(nil)
		return
	}
	s.prepare(op)
}

// alreadyServes reports whether an upgrade before this one, that ended after
// this one was asked for, has done all that this one is to do.
func (s *Supervisor) alreadyServes(op *operation) bool {
	g := s.current
	if g == nil || !op.image.same(g.image) || !cmp.Or(op.self, s.self).same(g.self) ||
		op.spec.ConfigHash != g.spec.ConfigHash {
		return false
	}
	if spec, err := g.wholeSpec(); err != nil || !bytes.Equal(op.spec.Payload, spec.Payload) {
		return false
	}
	return slices.ContainsFunc(s.operations, func(o *operation) bool {
		return o.Kind == OperationUpgrade && o.State == OperationDone && o.Generation == g.id &&
			o.Ended.After(op.Asked) && o.Upgrade.Canary == op.Upgrade.Canary
	})
}

// keepDefaults lets an upgrade of the program alone pass when no more than the
// program's own defaults differ of what takes effect by a restart only.
func (s *Supervisor) keepDefaults(op *operation) {
	if op.spec.ConfigHash != s.spec.ConfigHash {
		return
	}
	if key := restartKey(s.spec, op.spec); key != "" {
		s.log.Warn("the new program's default takes effect by a restart only", zap.String("key", key))
		op.spec.Geometry, op.spec.ServerID, op.spec.SocketBuffers = s.spec.Geometry, s.spec.ServerID, s.spec.SocketBuffers
	}
}

// admitted: the generation of an operation accepts all new connections in the
// place of old. What is left of an upgrade is to see how that goes, and the
// supervisor itself.
func (s *Supervisor) admitted(op *operation, old *generation) {
	if !s.startProbation(s.current, old, op) {
		s.become(op)
		return
	}
	s.stage(op, StageSettling)
	s.after(min(s.env.settle, s.current.spec.Probation), func() {
		if s.op == op {
			s.become(op)
		}
	})
}

// become makes this process what the operation wants the supervisor to be, and
// ends the operation when it is that.
func (s *Supervisor) become(op *operation) {
	if op.self == nil || op.self.same(s.self) {
		s.finishOp(nil)
		return
	}
	s.stage(op, StageExec)
	// Once all that this event leads to has been done.
	s.after(0, func() {
		if s.op != op || s.stopping != stopNone {
			return
		}
		s.log.Info("the supervisor becomes another program", zap.Uint64("operation", op.ID),
			zap.String("program", op.self.path), zap.String("version", op.Version))
		if err := s.execTo(op.self, op); err != nil {
			s.stayed(op, fmt.Errorf("the supervisor could not become %s: %w", op.self.path, err))
		}
	})
}

// stayed: the supervisor has not become the program that an operation wanted,
// so that program's workers are not to stay either.
func (s *Supervisor) stayed(op *operation, why error) {
	if p := s.probation; p != nil && p.operation == op.ID {
		s.goBack(why)
		return
	}
	s.finishOp(why)
}

// resumeOperation decides what becomes of the operation that was under way when
// this supervisor took the instance over. The failure is why the program that it
// wanted has given the instance back; empty when there was none.
//
// Preconditions: all else is restored; the loop has not begun.
func (s *Supervisor) resumeOperation(op *operation, failure string) {
	switch {
	case op == nil:
		if failure != "" {
			s.fail("exec", errors.New(failure))
		}
		return
	case failure != "":
		s.op = op
		s.stayed(op, fmt.Errorf("the new program became the supervisor and gave that up: %s", failure))
		return
	}
	s.op = op
	if g := s.canary; g != nil && g.id == op.Generation {
		// It is on trial as before, and the operation lasts as long as that.
		op.gen, op.self = g, g.self.hold()
		return
	}
	op.gen = s.current
	switch g := s.current; {
	case g != nil && g.id == op.Generation && g.self.same(s.self):
		// It is this very process that was missing, or nothing was: a
		// supervisor that was killed in the last moment had done all the rest.
		s.finishOp(nil)
	default:
		s.finishOp(errors.New("the supervisor ended while it was under way, and has undone it"))
	}
}
