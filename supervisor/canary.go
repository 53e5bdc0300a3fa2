package supervisor

import (
	"errors"
	"fmt"
	"math"
	"time"

	"go.uber.org/zap"

	"github.com/holdfast-quic/holdfast/shm"
)

const (
	// defaultSoak is how long a canary that decides by itself is on trial when
	// nothing is said.
	defaultSoak = time.Minute
	// judgeInterval is how often a canary is held against the generation beside
	// it, and trialProbe how often its workers are probed. One failed probe may
	// be a lost packet; badProbes in a row are not.
	judgeInterval = 500 * time.Millisecond
	trialProbe    = 2 * time.Second
	badProbes     = 2
)

// turnsMinor is the first minor version of the segment whose workers keep to the
// turns of a canary.
const turnsMinor = 1

var errNoTurns = fmt.Errorf("%w: a canary needs workers of segment ABI 1.%d or later on both sides", ErrState, turnsMinor)

// trial is the time in which a generation has a share of the new connections
// only. It belongs to the generation, from its start on.
type trial struct {
	percent float64
	soak    time.Duration
	auto    bool

	begun    time.Time
	base     tally // of the canary, when it got its share
	rival    tally // of the current generation, then
	crashes  uint64
	probes   uint64 // that were made, each of them a connection
	failed   uint64 // of those
	inARow   int    // of those, without one that went well
	promoted []*operation
	soaked   *timer
	ticker   *timer
	prober   *timer
}

// trialOf returns the trial that an operation wants its generation to pass.
// Where nothing serves yet there is nothing to try it against.
func (s *Supervisor) trialOf(op *operation) *trial {
	u := op.Upgrade
	if u == nil || u.Canary <= 0 || s.current == nil {
		return nil
	}
	t := &trial{percent: u.Canary, soak: u.Soak, auto: u.Auto}
	if t.auto && t.soak == 0 {
		t.soak = defaultSoak
	}
	return t
}

// judged reports whether the trial ends with a verdict.
func (t *trial) judged() bool { return t.auto || t.soak > 0 }

// shareOf turns a percentage into a share as the segment has it: at least one
// connection in 65536, and never all.
func shareOf(percent float64) uint16 {
	return uint16(min(max(math.Round(percent/100*(1<<16)), 1), math.MaxUint16))
}

// CanaryReport is how a canary has done so far, or did.
type CanaryReport struct {
	Share   float64    `json:"share"` // percent of new connections
	Since   time.Time  `json:"since"`
	Decides *time.Time `json:"decides,omitempty"` // when its soak is over
	Auto    bool       `json:"auto"`              // whether it is promoted or rolled back then without being told
	Canary  Health     `json:"canary"`
	Current Health     `json:"current"`           // the generation beside it, in the same time
	Fault   string     `json:"fault,omitempty"`   // what is clearly worse; empty: nothing
	Verdict string     `json:"verdict,omitempty"` // in the end: one line
}

// report describes the trial of the canary.
func (s *Supervisor) report(g *generation) *CanaryReport {
	t := g.trial
	r := &CanaryReport{
		Share: t.percent, Since: t.begun, Auto: t.auto,
		Canary: s.tally(g).since(t.base).health(),
	}
	if s.current != nil && s.current != g {
		r.Current = s.tally(s.current).since(t.rival).health()
	}
	r.Canary.Connections -= min(r.Canary.Connections, t.probes)
	r.Canary.Crashes, r.Canary.ProbesFailed = t.crashes, t.failed
	if t.soak > 0 {
		end := t.begun.Add(t.soak)
		r.Decides = &end
	}
	switch {
	case t.crashes > 0 && g.lost != nil:
		r.Fault = fmt.Sprintf("a worker crashed: %s", oneLine(g.lost))
	case t.crashes > 0:
		r.Fault = "a worker crashed"
	case t.inARow >= badProbes:
		r.Fault = fmt.Sprintf("%d probes in a row failed", t.inARow)
	default:
		r.Fault = r.Canary.worse(r.Current)
		for w := range g.workers {
			if w.pulse.hung && r.Fault == "" {
				r.Fault = "a worker hangs"
			}
		}
	}
	return r
}

// openTrial gives g its share of the new connections, by one store. It reads no
// UDP socket: whoever reads passes its packets on.
func (s *Supervisor) openTrial(g *generation) {
	g.handTimer.stop()
	g.handing = false
	t := g.trial
	s.canary, s.incoming = g, nil
	for w := range g.workers {
		s.seg.Directory().SetServing(w.slot, true)
	}
	t.begun, t.base, t.rival = time.Now(), s.tally(g), s.tally(s.current)
	s.seg.Admission().ResetTurns()
	s.seg.Admission().Store(shm.Choice{Current: s.current.id, Canary: g.id, Share: shareOf(t.percent)})
	s.reconcile()
	s.log.Info("generation is a canary", zap.Uint32("generation", uint32(g.id)), zap.Float64("percent", t.percent),
		zap.Duration("soak", t.soak), zap.Bool("auto", t.auto))
	s.refuseQueue()
	if op := s.op; op != nil && op.gen == g {
		if !t.judged() {
			op.Canary = s.report(g)
			s.finishOp(nil)
			return
		}
		s.stage(op, StageCanary)
	}
	s.armTrial(g)
}

// armTrial starts what a trial that is judged needs: looks, probes, and its end.
func (s *Supervisor) armTrial(g *generation) {
	t := g.trial
	if !t.judged() {
		return
	}
	t.soaked = s.after(time.Until(t.begun.Add(t.soak)), func() { s.soaked(g) })
	var look, probe func()
	look = func() {
		s.judge(g)
		if s.canary == g {
			t.ticker = s.after(judgeInterval, look)
		}
	}
	t.ticker = s.after(judgeInterval, look)
	probe = func() {
		s.probeTrial(g)
		t.prober = s.after(trialProbe, probe)
	}
	t.prober = s.after(trialProbe, probe)
}

func (t *trial) stop() {
	t.soaked.stop()
	t.ticker.stop()
	t.prober.stop()
}

// judge rolls a canary back that is clearly worse than the generation beside
// it, if it is to decide by itself.
func (s *Supervisor) judge(g *generation) {
	if s.canary != g || !g.trial.auto || s.stopping != stopNone {
		return
	}
	if r := s.report(g); r.Fault != "" {
		s.log.Warn("canary is rolled back", zap.Uint32("generation", uint32(g.id)), zap.String("reason", r.Fault))
		s.rollBackCanary(errors.New(r.Fault))
	}
}

// crashedOnTrial: a worker of the canary was lost.
func (s *Supervisor) crashedOnTrial(g *generation) {
	g.trial.crashes++
	s.judge(g)
}

// judgeHung judges the canary if a worker of it hangs.
func (s *Supervisor) judgeHung() {
	if s.canary != nil {
		s.judge(s.canary)
	}
}

// trialProbeEvent: a worker on trial was probed once more.
type trialProbeEvent struct {
	w      *worker
	pushed uint64
	err    error
}

func (e trialProbeEvent) handle(s *Supervisor) {
	s.seg.SupervisorCounters().Add(shm.ProbePushed, e.pushed)
	e.w.probing = false
	g := e.w.gen
	if s.canary != g || e.w.state != workerServing {
		return
	}
	t := g.trial
	t.probes++
	if e.err == nil {
		t.inARow = 0
		return
	}
	t.failed++
	t.inARow++
	s.log.Warn("probe of a canary failed", append(e.w.fields(), zap.Error(e.err))...)
	s.judge(g)
}

// probeTrial probes the workers of the canary.
func (s *Supervisor) probeTrial(g *generation) {
	for w := range g.workers {
		if w.state == workerServing && !w.probing {
			w.probing = s.probeAside(w, func(pushed uint64, err error) event { return trialProbeEvent{w, pushed, err} })
		}
	}
}

// soaked: the trial has lasted long enough.
func (s *Supervisor) soaked(g *generation) {
	if s.canary != g || s.stopping != stopNone {
		return
	}
	r := s.report(g)
	if g.trial.auto {
		if r.Fault != "" {
			s.judge(g)
			return
		}
		s.log.Info("canary has passed its trial", zap.Uint32("generation", uint32(g.id)), zap.Stringer("canary", r.Canary), zap.Stringer("current", r.Current))
		s.promote(g, nil)
		return
	}
	// Somebody has to decide; this is what there is to decide on.
	r.Verdict = verdictOf(r)
	g.trial.ticker.stop()
	s.log.Info("canary has soaked", zap.Uint32("generation", uint32(g.id)), zap.String("verdict", r.Verdict))
	if op := s.op; op != nil && op.gen == g {
		op.Canary = r
		s.finishOp(nil)
	}
}

// verdictOf puts a report into one line.
func verdictOf(r *CanaryReport) string {
	word := "no worse"
	if r.Fault != "" {
		word = r.Fault
	}
	return fmt.Sprintf("%s: canary %s; current %s", word, r.Canary, r.Current)
}

// endTrial ends the trial of the canary, if there is one, and tells who waits
// for its promotion.
func (s *Supervisor) endTrial(err error) {
	g := s.canary
	if g == nil {
		return
	}
	s.canary = nil
	g.handing = false
	g.handTimer.stop()
	g.trial.stop()
	for _, op := range g.trial.promoted {
		if op != s.op {
			s.end(op, err)
		}
	}
	g.trial.promoted = nil
}

// errCanary says why nothing else can be begun.
func (s *Supervisor) errCanary() error {
	if s.canary == nil {
		return nil
	}
	return fmt.Errorf("%w: generation %d is a canary with %v %% of new connections: promote it or roll it back first",
		ErrState, s.canary.id, s.canary.trial.percent)
}

// refuseQueue fails what was to come after the operation that brought the
// canary: it may last for days, and nobody would be told.
func (s *Supervisor) refuseQueue() {
	queue := s.queue
	s.queue = nil
	for _, op := range queue {
		s.failed(op, s.errCanary())
		s.end(op, s.errCanary())
	}
	if len(queue) > 0 {
		s.notifySettled()
	}
}
