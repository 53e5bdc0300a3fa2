package supervisor

import (
	"time"

	"go.uber.org/zap"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
)

// drainSpan is when the connections of a generation, or of one listener in
// it, are told goodbye and when what is left of them is closed.
type drainSpan struct {
	goodbye, end time.Time
}

// spanOf divides a drain of so long that begins now. The grace is the last
// part of it, so that a limit means what it says: nothing lives after it.
func spanOf(now time.Time, limit, grace time.Duration) drainSpan {
	end := now.Add(limit)
	return drainSpan{goodbye: end.Add(-min(max(grace, 0), limit/2)), end: end}
}

// drain sends the order to all and arms the deadline. A deadline that is
// nearer already stays.
func (s *Supervisor) drain(g *generation, mode string, window, limit time.Duration) {
	g.mode, g.window, g.handing = mode, window, false
	now := time.Now()
	span := spanOf(now, limit, g.spec.Drain.Grace)
	if g.deadline.IsZero() || span.end.Before(g.deadline) {
		g.goodbye, g.deadline = span.goodbye, span.end
		s.armDrain(g)
	}
	g.limitListeners(now)
	s.endReplacements(g)
	s.reconcile() // stop reading first, so that nothing new comes in while they say goodbye
	for w := range g.workers {
		s.workerEvent(w, wkDrain)
	}
	s.settle(g)
}

// armDrain sets the timer of the end of the drain.
func (s *Supervisor) armDrain(g *generation) {
	g.timer.stop()
	g.timer = s.after(time.Until(g.goodbye), func() {
		s.log.Info("drain is over", zap.Uint32("generation", uint32(g.id)))
		s.generationEvent(g, genDeadline)
	})
}

// limitListeners fixes, once, when the listeners end that have a limit of
// their own, and forgets those that do not end before the generation does.
func (g *generation) limitListeners(now time.Time) {
	if g.limits == nil {
		g.limits = map[uint8]drainSpan{}
		for _, w := range g.wants {
			if d := w.spec.DrainTimeout; d > 0 {
				g.limits[w.listener.id] = spanOf(now, d, g.spec.Drain.Grace)
			}
		}
	}
	for id, span := range g.limits {
		if !span.end.Before(g.deadline) {
			delete(g.limits, id)
		}
	}
}

// drainOrder is the order in force, for a worker that gets it now. Times that
// a worker has to keep travel as what is left of them: the clocks that two
// processes show may be set, the time that passes may not.
func (g *generation) drainOrder() *lifeline.Drain {
	order := &lifeline.Drain{Mode: g.mode, Window: g.window, Deadline: g.deadline, Linger: max(time.Until(g.linger), 0)}
	for id, span := range g.limits {
		if order.Listeners == nil {
			order.Listeners = make(map[uint8]lifeline.Limit, len(g.limits))
		}
		order.Listeners[id] = lifeline.Limit{
			Goodbye: max(time.Until(span.goodbye), 0), End: max(time.Until(span.end), 0),
		}
	}
	return order
}

// lastGrace is what the workers have for their goodbyes when the drain is
// over: what is left until the deadline, or the configured grace when they
// are ended before it comes.
func (g *generation) lastGrace(now time.Time) time.Duration {
	grace := max(g.spec.Drain.Grace, 0)
	if left := g.deadline.Sub(now); left < grace {
		grace = max(left, 0)
	}
	return max(grace, leastGrace)
}

// leastGrace is enough to say goodbye to everybody, and no more.
const leastGrace = 100 * time.Millisecond
