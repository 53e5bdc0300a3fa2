package supervisor

import (
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/holdfast-quic/holdfast/shm"
)

// exited: the process has ended, by its pidfd. Nothing else proves it.
func (s *Supervisor) exited(w *worker) {
	pid := w.proc.PID()
	end, seen := s.reaped[pid]
	if !seen {
		end = w.proc.Reap()
	}
	// Of a process that another supervisor started only its parent learns how
	// it ended. What it said itself counts then, on the lifeline or in the
	// segment.
	if !end.known && (w.drained || s.seg.Directory().Record(w.slot).Phase == shm.PhaseDone) {
		end = exit{known: true}
	}
	delete(s.reaped, pid)
	delete(s.byPID, pid)
	if w.state < workerDraining || w.state == workerDraining && !end.clean() {
		w.blame(fmt.Errorf("%s", end))
	}
	e := wkExitBad
	if end.clean() {
		e = wkExitClean
	}
	s.hub.publish("worker", workerNews{"ended", w.gen.id, w.slot, w.incarnation, pid, end.String()})
	s.workerEvent(w, e)
}

// reclaim frees what a dead worker held, in the segment and here.
func (s *Supervisor) reclaim(w *worker) {
	w.gen.done.add(s.tallyOf(w))
	entries, packets := s.slots.reclaim(w)
	s.log.Info("worker ended", append(w.fields(), zap.NamedError("reason", w.reason),
		zap.Int("table_entries", entries), zap.Int("queued_packets", packets))...)
	w.readyTimer.stop()
	w.graceTimer.stop()
	if w.stopProbe != nil {
		w.stopProbe()
	}
	if w.conn != nil {
		w.conn.Close()
		w.out.close()
	}
	w.proc.Close()
	delete(s.workers, w)
	s.failQueries(w)
	if w.member.w == w && w.gen.state == GenerationDraining {
		w.member.w = nil
		s.reconcile() // a listener that only this generation has is read by a sibling
	}
}

// lost: a worker is gone, or as good as gone, that its generation counted on.
// A sibling reads its sockets from now on.
func (s *Supervisor) lost(w *worker) {
	g, m := w.gen, w.member
	if m.w == w {
		m.w = nil
	}
	if w.reason != nil && g.reason == nil && g.state < GenerationCanary {
		g.reason = fmt.Errorf("worker %d of %d: %w", m.index+1, len(g.members), w.reason)
	}
	g.lost = w.reason
	s.generationEvent(g, genWorkerLost)
	s.reconcile()
	if generationTable[g.state][genWorkerLost].do&doReplace != 0 {
		s.replace(g, m, w.reason)
	}
}

// replace starts another process for a place after a pause that grows.
func (s *Supervisor) replace(g *generation, m *member, why error) {
	pause := m.back.next(time.Now())
	s.log.Warn("worker is replaced", zap.Uint32("generation", uint32(g.id)), zap.Int("place", m.index),
		zap.Duration("pause", pause), zap.Int("restarts", m.restarts), zap.NamedError("reason", why))
	s.startMember(g, m, pause)
}

// startMember starts a process for a place after a pause.
func (s *Supervisor) startMember(g *generation, m *member, pause time.Duration) {
	m.timer.stop()
	m.next = time.Now().Add(pause)
	m.timer = s.after(pause, func() {
		m.timer, m.next = nil, time.Time{}
		m.restarts++
		if err := s.spawn(g, m); err != nil {
			s.replace(g, m, err)
		}
	})
}
