package supervisor

import (
	"context"
	"os"
	"slices"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
	"github.com/holdfast-quic/holdfast/shm"
)

// event is something that happened. The loop calls handle; nothing else does.
type event interface{ handle(s *Supervisor) }

// post hands an event to the loop, or drops it when the loop has ended.
func (s *Supervisor) post(e event) {
	select {
	case s.events <- e:
	case <-s.done:
	}
}

type (
	signalEvent struct{ sig os.Signal }
	stopEvent   struct{ kind stopKind }
	timerEvent  struct {
		t  *timer
		fn func()
	}
	messageEvent struct {
		w *worker
		m *lifeline.Message
	}
	silenceEvent struct {
		w   *worker
		why error
	}
	exitEvent   struct{ w *worker }
	loadedEvent struct {
		op   *operation
		spec *Spec
		err  error
	}
	probedEvent struct {
		w      *worker
		pushed uint64
		err    error
	}
	requestEvent struct{ fn func(*Supervisor) }
)

func (e stopEvent) handle(s *Supervisor)    { s.stop(e.kind) }
func (e messageEvent) handle(s *Supervisor) { s.message(e.w, e.m) }
func (e exitEvent) handle(s *Supervisor)    { s.exited(e.w) }
func (e loadedEvent) handle(s *Supervisor)  { s.loaded(e.op, e.spec, e.err) }
func (e requestEvent) handle(s *Supervisor) { e.fn(s) }

func (e timerEvent) handle(*Supervisor) {
	if !e.t.dead {
		e.t.dead = true
		e.fn()
	}
}

// silenceEvent: the lifeline has closed, which the process's own end does
// too; so the end has a moment to show before the worker counts as broken.
func (e silenceEvent) handle(s *Supervisor) {
	if e.w.state == workerGone {
		return
	}
	s.after(silenceGrace, func() {
		if e.w.state != workerGone {
			e.w.blame(e.why)
			s.workerEvent(e.w, wkSilent)
		}
	})
}

func (e probedEvent) handle(s *Supervisor) {
	s.seg.SupervisorCounters().Add(shm.ProbePushed, e.pushed)
	if e.err != nil {
		e.w.blame(e.err)
		s.workerEvent(e.w, wkProbeBad)
		return
	}
	s.workerEvent(e.w, wkProbed)
}

// after calls fn in the loop after d.
func (s *Supervisor) after(d time.Duration, fn func()) *timer {
	t := &timer{}
	t.t = time.AfterFunc(d, func() { s.post(timerEvent{t, fn}) })
	return t
}

// call runs fn in the loop and waits for it. It is for other goroutines.
func (s *Supervisor) call(ctx context.Context, fn func(*Supervisor)) error {
	ran := make(chan struct{})
	e := requestEvent{func(s *Supervisor) {
		fn(s)
		close(ran)
	}}
	select {
	case s.events <- e:
	case <-s.done:
		return ErrStopping
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-ran:
		return nil
	case <-s.done:
		return ErrStopping
	}
}

func (s *Supervisor) watchSignals() {
	for {
		select {
		case sig, ok := <-s.opt.Signals:
			if !ok {
				return
			}
			s.post(signalEvent{sig})
		case <-s.done:
			return
		}
	}
}

func (e signalEvent) handle(s *Supervisor) {
	switch e.sig {
	case syscall.SIGHUP:
		s.requestReload(nil)
	case syscall.SIGUSR1:
		s.reopenLogs()
	case syscall.SIGUSR2:
		if _, err := s.requestUpgrade(UpgradeRequest{}); err != nil {
			s.log.Error("upgrade refused", zap.Error(err))
		}
	case syscall.SIGQUIT:
		if s.stopping == stopGraceful {
			s.stop(stopFast)
			return
		}
		s.stop(stopGraceful)
	case syscall.SIGTERM, syscall.SIGINT:
		s.stop(stopFast)
	case syscall.SIGCHLD:
		// Children that this process started are waited for by their pidfds.
		// As PID 1 it also inherits the orphans of the container.
		if s.env.getpid() == 1 {
			s.env.reapOthers(s.reapedChild)
		}
	default:
		s.log.Debug("signal ignored", zap.String("signal", e.sig.String()))
	}
}

// reapedChild keeps the end of a worker or a check that the reaper met first:
// its event is on its way.
func (s *Supervisor) reapedChild(pid int, end exit) {
	_, ours := s.byPID[pid]
	if _, checks := s.checks[pid]; ours || checks {
		s.reaped[pid] = end
	}
}

func (s *Supervisor) reopenLogs() {
	if s.opt.ReopenLogs != nil {
		if err := s.opt.ReopenLogs(); err != nil {
			s.log.Error("reopen logs", zap.Error(err))
		}
	}
	for w := range s.workers {
		if w.welcomed() {
			w.send(&lifeline.Message{Kind: lifeline.KindReopenLogs})
		}
	}
	s.log.Info("logs reopened")
}

// sweep frees expired entries in a part of the table, mends the segment, and
// comes again.
func (s *Supervisor) sweep() {
	entries := s.seg.Geometry().TableEntries
	idle := s.spec.IdleTimeout
	for _, g := range s.generations {
		idle = max(idle, g.spec.IdleTimeout) // its connections keep what they agreed on
	}
	established := min(2*idle, maxEntryAge)
	limits := shm.Limits{
		Handshake:   shm.Epoch(handshakeAge / time.Second),
		Established: shm.Epoch(max(established, handshakeAge) / time.Second),
	}
	s.sweepAt, _ = s.seg.Table().Sweep(s.sweepAt, max(entries/sweepRounds, 1), shm.EpochAt(s.env.monotonic()), limits)
	s.slots.repair()
	s.watchClock()
	s.after(sweepInterval, s.sweep)
}

const (
	handshakeAge = 30 * time.Second
	// Epochs are 16-bit seconds that wrap; a greater age would look small.
	maxEntryAge = 8 * time.Hour
)

// removeGeneration takes g out of the list of those that have not ended.
func (s *Supervisor) removeGeneration(g *generation) {
	s.generations = slices.DeleteFunc(s.generations, func(o *generation) bool { return o == g })
}
