package supervisor

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/shm"
)

func TestTrialSurvivesItsSupervisor(t *testing.T) {
	was := &trial{percent: 5, soak: time.Hour, auto: true, begun: time.Now(), crashes: 2}
	wire, err := json.Marshal(was.document())
	if err != nil {
		t.Fatal(err)
	}
	var d *trialDocument
	if err := json.Unmarshal(wire, &d); err != nil {
		t.Fatal(err)
	}
	is := d.trial(func(at time.Time) time.Time { return at.Add(time.Minute) })
	if is.percent != 5 || is.soak != time.Hour || !is.auto || is.crashes != 2 || !is.begun.Equal(was.begun.Add(time.Minute)) {
		t.Errorf("%+v", is)
	}
	if (*trial)(nil).document() != nil || (*trialDocument)(nil).trial(nil) != nil {
		t.Error("a trial out of nothing")
	}
}

func TestFateOfACanary(t *testing.T) {
	g := &generation{id: 7, trial: &trial{}}
	for c, want := range map[shm.Choice]canaryFate{
		{Current: 6, Canary: 7, Share: 1}: canaryStays,
		{Current: 7}:                      canaryPromoted,
		{Current: 6}:                      canaryGone,
		{}:                                canaryGone,
	} {
		if got := fateOf(g, c); got != want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

// A supervisor that finds a canary goes on with it, promotes it, or rolls it
// back, as its predecessor had decided.
func TestCanaryIsResumed(t *testing.T) {
	for name, tc := range map[string]struct {
		found shm.Choice
		state GenerationState
	}{
		"stays":    {shm.Choice{Current: 1, Canary: 2, Share: 6554}, GenerationCanary},
		"promoted": {shm.Choice{Current: 2}, GenerationCurrent},
		"gone":     {shm.Choice{Current: 1}, GenerationDraining},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := onTrial(t, UpgradeRequest{Canary: 10}, nil)
			_ = r.s.call(t.Context(), func(s *Supervisor) {
				g := s.canary
				s.canary = nil
				g.trial = g.trial.document().trial(func(at time.Time) time.Time { return at })
				s.seg.Admission().Store(tc.found)
				s.resumeCanary(g)
			})
			r.waitFor(name, func(st *Status) bool { return r.stateOf(st, 2) == tc.state })
			r.mustReloadUnless(tc.state == GenerationCanary)
		})
	}
}

// mustReloadUnless reloads, except while that can't be.
func (r *rig) mustReloadUnless(not bool) {
	r.t.Helper()
	if !not {
		r.mustReload()
	}
}
