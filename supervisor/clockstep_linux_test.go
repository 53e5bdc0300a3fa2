package supervisor

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// steps are those of C069.
var steps = map[string]time.Duration{"an hour on": time.Hour, "an hour back": -time.Hour, "forty days on": 40 * 24 * time.Hour, "forty days back": -40 * 24 * time.Hour}

// C069: a clock that is set is told of, once, and one that is adjusted gently
// is not.
func TestClockStepIsTold(t *testing.T) {
	core, seen := observer.New(zapcore.WarnLevel)
	var shift atomic.Int64
	r := newRunning(t, func(r *rig) { r.opt.Log = zap.New(core) })
	if err := r.s.call(t.Context(), func(s *Supervisor) {
		s.env.wall = func() time.Time { return time.Now().Add(time.Duration(shift.Load())) }
	}); err != nil {
		t.Fatal(err)
	}
	told := func() int { return seen.FilterMessageSnippet("the wall clock was set").Len() }
	look := func() {
		t.Helper()
		if err := r.s.call(t.Context(), (*Supervisor).watchClock); err != nil {
			t.Fatal(err)
		}
	}
	look()
	shift.Add(int64(2 * time.Millisecond))
	look()
	if told() != 0 {
		t.Fatal("a gentle change is told of")
	}
	n := 0
	for name, d := range steps {
		shift.Add(int64(d))
		look()
		look()
		if n++; told() != n {
			t.Fatalf("%s: told of %d times, expected %d", name, told(), n)
		}
		by := seen.FilterMessageSnippet("the wall clock was set").All()[n-1].ContextMap()["by"].(time.Duration)
		if (by - d).Abs() > clockStep {
			t.Errorf("%s: told as %v", name, by)
		}
	}
	r.waitFor("the same generation as before", func(st *Status) bool { return len(st.Generations) == 1 && r.current(st) == 1 })
}

// C069: what waits, waits as long as it was to, when the clock was set between
// its beginning and the end of the supervisor, and again before the next one.
func TestTimesOutliveClockSteps(t *testing.T) {
	for name, step := range steps {
		made := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		deadline := made.Add(time.Hour)
		// Ten minutes pass and the clock is set; then the document is written.
		written := made.Add(10*time.Minute + step)
		kept := anchored(deadline, 50*time.Minute, written)
		// Five more pass, and the clock is set again, before it is read.
		read := written.Add(5*time.Minute + step)
		r := &restorer{doc: &document{Time: written}, shift: -5 * time.Minute, now: read}
		if left := r.at(kept).Sub(read); (left - 45*time.Minute).Abs() > 10*time.Millisecond {
			t.Errorf("%s: %v are left, expected 45 minutes", name, left)
		}
	}
	now := time.Now().UTC()
	later := now.Add(time.Hour)
	if got := anchored(later, later.Sub(now), now.Add(3*time.Millisecond)); got != later {
		t.Errorf("without a step %v became %v", later, got)
	}
}

// Every time in the document that is read again goes by the clock as it is.
func TestDocumentIsAnchored(t *testing.T) {
	now := time.Now().UTC()
	old := now.Add(-40 * 24 * time.Hour).Round(0) // as from before the clock was set
	d := &document{
		Started: old, LastReload: old, Probation: &probationDocument{Until: old},
		Generations: []generationDocument{{
			Since: old, Goodbye: old, Deadline: old, Linger: old, Trial: &trialDocument{Begun: old},
			Limits:  map[uint8]spanDocument{1: {old, old}},
			Members: []memberDocument{{Started: old, Next: old}},
			Workers: []workerDocument{{Started: old, GraceEnd: old}},
		}},
	}
	const step = 3 * time.Hour
	since := func(t time.Time) time.Duration { return t.Sub(now) + step }
	d.anchor(now, since)
	wire, err := d.encode()
	if err != nil || strings.Count(string(wire), old.Add(step).UTC().Format("2006-01-02T15:04")) != 14 || strings.Contains(string(wire), old.UTC().Format("2006-01-02T15:04")) {
		t.Errorf("%v: 14 times went in, and %s came out", err, wire)
	}
	d.anchor(now, func(t time.Time) time.Duration { return t.Sub(now) })
	if again, err := d.encode(); err != nil || string(again) != string(wire) {
		t.Errorf("%v\nwas %s\nis  %s", err, wire, again)
	}
}
