package supervisor

import (
	"time"

	"go.uber.org/zap"
)

// clockStep is by how much the wall clock must leave the monotonic one from one
// look to the next to count as set. What adjusts a clock gently changes it by
// half a millisecond in a second.
const clockStep = 500 * time.Millisecond

// clocks are both clocks at one moment.
type clocks struct {
	wall time.Time // without a monotonic part
	mono int64     // CLOCK_MONOTONIC in nanoseconds
}

// step returns by how much the wall clock was set between two looks; 0 for not
// at all. A host that slept looks the same: CLOCK_MONOTONIC stands meanwhile.
func (c clocks) step(now clocks) time.Duration {
	if c.wall.IsZero() {
		return 0
	}
	d := now.wall.Sub(c.wall) - time.Duration(now.mono-c.mono)
	if d.Abs() < clockStep {
		return 0
	}
	return d
}

// watchClock tells that the wall clock was set. Nothing here depends on it:
// all that waits, waits by the monotonic clock, also over the supervisor's own
// end, since the state document holds both. But what is read in logs and
// status does, and the life of what clients bring back: Retry tokens and
// session tickets.
func (s *Supervisor) watchClock() {
	now := clocks{s.env.wall().Round(0), s.env.monotonic()}
	if d := s.clocks.step(now); d != 0 {
		s.log.Warn("the wall clock was set, or the host slept; connections, drains and pauses go by the monotonic clock",
			zap.Duration("by", d), zap.Time("before", now.wall.Add(-d)))
	}
	s.clocks = now
}

// anchor puts the times of a document on the wall clock as it is now. A time of
// this process has a monotonic part, which the document can't keep: without it,
// one from before the clock was set would be off by that much for the next
// supervisor. left says how far from now a time is by the monotonic clock.
func (d *document) anchor(now time.Time, left func(time.Time) time.Duration) {
	put := func(times ...*time.Time) {
		for _, t := range times {
			if !t.IsZero() {
				*t = anchored(*t, left(*t), now)
			}
		}
	}
	put(&d.Started, &d.LastReload)
	if d.Probation != nil {
		put(&d.Probation.Until)
	}
	for i := range d.Generations {
		g := &d.Generations[i]
		put(&g.Since, &g.Goodbye, &g.Deadline, &g.Linger)
		if g.Trial != nil {
			put(&g.Trial.Begun)
		}
		for id, span := range g.Limits {
			put(&span.Goodbye, &span.End)
			g.Limits[id] = span
		}
		for j := range g.Members {
			put(&g.Members[j].Started, &g.Members[j].Next)
		}
		for j := range g.Workers {
			put(&g.Workers[j].Started, &g.Workers[j].GraceEnd)
		}
	}
}

// anchored returns the wall time of a moment that is so long from now, by the
// monotonic clock; t is what it was thought to be. As long as the clock was not
// set that is right, and stays the same to the last bit.
func anchored(t time.Time, left time.Duration, now time.Time) time.Time {
	const grain = 10 * time.Millisecond // far above what gentle adjustment does, so that this stays the same too
	d := now.Round(0).Add(left).Sub(t.Round(0))
	if d.Abs() < clockStep {
		return t
	}
	return t.Round(0).Add(d.Round(grain))
}
