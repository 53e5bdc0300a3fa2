package supervisor

import (
	"fmt"
	"time"

	"go.uber.org/zap"
)

// hungAfter is how many looks without a new heartbeat make a worker count as
// hung: a sibling reads its sockets from then on. Workers beat once a second,
// and env.look is as long.
const hungAfter = 3

// pulse is what the supervisor has seen of a worker's heartbeat. It counts its
// own looks rather than comparing clocks: time in which the supervisor did not
// run either, because the host or the container was frozen, is nobody's fault.
type pulse struct {
	beat   int64 // the last one seen; 0: none yet, or a program that never beats
	missed int   // looks since it was new
	hung   bool
}

// absent is a look at a worker that has not introduced itself to the supervisor
// that took over from the one that it had. Whether it is alive otherwise does not
// matter: it can't be told anything.
func (p *pulse) absent(limit int) (changed bool) {
	p.missed++
	was := p.hung
	p.hung = p.missed >= limit
	return p.hung != was
}

// look takes the present heartbeat and reports whether the worker has hung or
// come back.
func (p *pulse) look(beat int64) (changed bool) {
	if beat == 0 || beat != p.beat {
		p.beat, p.missed = beat, 0
	} else {
		p.missed++
	}
	was := p.hung
	p.hung = p.missed >= hungAfter
	return p.hung != was
}

// watch looks at the heartbeats of the workers and comes again. The process of
// a worker that hangs is there and its lifeline is open, so nothing else would
// tell: it may be stopped, starved or in a dead lock. A generation that is not
// current yet has to show in time what it is asked for, which is enough.
func (s *Supervisor) watch() {
	changed := false
	for w := range s.workers {
		if w.gen == s.incoming || w.state != workerServing && w.state != workerDraining {
			continue
		}
		var turned bool
		if w.conn == nil {
			turned = w.pulse.absent(max(int(answerTimeout/s.env.look), hungAfter))
		} else {
			turned = w.pulse.look(s.seg.Directory().Record(w.slot).Heartbeat)
		}
		if turned {
			changed = true
			if w.pulse.hung {
				s.log.Warn("worker hangs; a sibling reads its sockets", w.fields()...)
			} else {
				s.log.Info("worker is back", w.fields()...)
			}
		}
		s.replaceHung(w)
	}
	if changed {
		s.reconcile()
		s.admitLively()
		s.judgeHung()
	}
	s.after(s.env.look, s.watch)
}

// replaceHung kills a worker of a generation that accepts which has hung for so
// long that it is not waited for any more; its end brings the replacement.
// Those of a draining generation have their deadline.
func (s *Supervisor) replaceHung(w *worker) {
	limit := w.gen.spec.Liveness
	silent := time.Duration(w.pulse.missed) * s.env.look
	if w.gen != s.current && w.gen != s.canary || w.state != workerServing || limit < 0 || !w.pulse.hung || silent < limit {
		return
	}
	s.log.Error("worker has hung for too long", append(w.fields(), zap.Duration("silent", silent))...)
	w.blame(fmt.Errorf("%w: no sign of life within %v", ErrTimeout, limit))
	s.counts.crashes++
	s.workerEvent(w, wkSilent)
}

// admitLively keeps new connections away from workers of the current
// generation that hang, as long as there is another, and from those of a
// canary.
func (s *Supervisor) admitLively() {
	for _, g := range []*generation{s.current, s.canary} {
		if g == nil {
			continue
		}
		lively := g.readers()
		for i, m := range g.members {
			if m.w == nil || m.w.state != workerServing {
				continue
			}
			// What a canary can't take the others do, so none has to try.
			serves := lively[i] && (g != s.canary || !m.w.pulse.hung)
			if dir := s.seg.Directory(); dir.Record(m.w.slot).Serving != serves {
				dir.SetServing(m.w.slot, serves)
			}
		}
	}
}

// readers says for each place whether its worker is to read sockets: those
// that can, without those that hang. If all of them hang, it is more likely
// that the host does, and moving sockets from one to the next is no use.
func (g *generation) readers() []bool {
	able, lively := make([]bool, len(g.members)), make([]bool, len(g.members))
	some := false
	for i, m := range g.members {
		able[i] = m.w != nil && (m.w.state == workerServing || m.w.state == workerDraining)
		lively[i] = able[i] && !m.w.pulse.hung
		some = some || lively[i]
	}
	if some {
		return lively
	}
	return able
}
