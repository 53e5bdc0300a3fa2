package supervisor

import (
	"time"

	"github.com/holdfast-quic/holdfast/shm"
)

// trialDocument is what the next supervisor needs of a trial. The counts begin
// anew with it: what the workers had counted at the begin, nobody knows any
// more.
type trialDocument struct {
	Percent float64       `json:"percent"`
	Soak    time.Duration `json:"soak,omitempty"`
	Auto    bool          `json:"auto,omitempty"`
	Begun   time.Time     `json:"begun"` // zero: has no share yet
	Crashes uint64        `json:"crashes,omitempty"`
}

func (t *trial) document() *trialDocument {
	if t == nil {
		return nil
	}
	return &trialDocument{Percent: t.percent, Soak: t.soak, Auto: t.auto, Begun: t.begun, Crashes: t.crashes}
}

// trial makes a trial of the document's; at turns a time of it into one of this
// process.
func (d *trialDocument) trial(at func(time.Time) time.Time) *trial {
	if d == nil {
		return nil
	}
	return &trial{percent: d.Percent, soak: d.Soak, auto: d.Auto, begun: at(d.Begun), crashes: d.Crashes}
}

// What has become of a canary while there was no supervisor.
type canaryFate uint8

const (
	canaryStays    canaryFate = iota // it has its share
	canaryPromoted                   // all new connections are its own, the rest is to be done
	canaryGone                       // new connections have been turned back, the rest is to be done
)

// fateOf tells from the segment what has become of a canary: one store is what
// decides, and the document may be older.
func fateOf(g *generation, c shm.Choice) canaryFate {
	switch {
	case g.trial == nil:
		return canaryGone
	case c.Canary == g.id:
		return canaryStays
	case c.Current == g.id:
		return canaryPromoted
	}
	return canaryGone
}

// resumeCanary goes on with a canary that a former supervisor left. It runs once
// all generations and their workers are there.
func (s *Supervisor) resumeCanary(g *generation) {
	fate := fateOf(g, s.seg.Admission().Load())
	if fate != canaryGone {
		s.canary = g
		g.trial.base = s.tally(g)
		if s.current != nil {
			g.trial.rival = s.tally(s.current)
		}
	}
	switch fate {
	case canaryStays:
		s.armTrial(g)
	case canaryPromoted:
		s.after(0, func() { s.promote(g, nil) })
	case canaryGone:
		s.after(0, func() { s.generationEvent(g, genRolledBack) })
	}
}
