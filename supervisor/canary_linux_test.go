package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
	"github.com/holdfast-quic/holdfast/shm"
)

// onTrial runs a supervisor with a canary, generation 2.
func onTrial(t *testing.T, u UpgradeRequest, adjust func(*rig)) (r *rig, id uint64) {
	t.Helper()
	r = newRunning(t, func(r *rig) {
		withPrograms(r)
		r.script.onDrain = stays
		if adjust != nil {
			adjust(r)
		}
	})
	u.Binary = program(t, t.TempDir(), "next")
	id = r.ask(u)
	r.waitFor("canary", func(st *Status) bool { return r.stateOf(st, 2) == GenerationCanary })
	return r, id
}

func (r *rig) stateOf(st *Status, id shm.Generation) GenerationState {
	for _, g := range st.Generations {
		if g.ID == id {
			return g.State
		}
	}
	return GenerationRetired
}

func (r *rig) choice() (c shm.Choice) {
	_ = r.s.call(r.t.Context(), func(s *Supervisor) { c = s.seg.Admission().Load() })
	return c
}

// order posts promote or rollback and returns how the operation ended, or the
// refusal.
func (r *rig) order(what string) (*Operation, Error) {
	r.t.Helper()
	code, body := r.call(http.MethodPost, "/v1/"+what, nil)
	if code != http.StatusAccepted {
		var e Error
		unmarshal(r.t, body, &e)
		return nil, e
	}
	var answer struct{ Operation uint64 }
	unmarshal(r.t, body, &answer)
	o := r.result(answer.Operation)
	return &o, Error{}
}

func (r *rig) mustOrder(what string) *Operation {
	r.t.Helper()
	o, refusal := r.order(what)
	if o == nil || o.State != OperationDone {
		r.t.Fatalf("%s: %+v %+v", what, o, refusal)
	}
	return o
}

func TestCanaryIsPromoted(t *testing.T) { // C050
	r, id := onTrial(t, UpgradeRequest{Canary: 10}, nil)
	if o := r.result(id); o.State != OperationDone || o.Generation != 2 || o.Canary == nil {
		t.Errorf("operation %+v", o)
	}
	if c := r.choice(); c != (shm.Choice{Current: 1, Canary: 2, Share: 6554}) {
		t.Errorf("admission %+v", c)
	}
	st := r.waitFor("TCP at both", func(*Status) bool { return len(r.alive(2)[0].tcp(0)) == 1 && len(r.alive(2)[1].tcp(0)) == 1 })
	if g := st.Generations; g[0].Weight != 10 || g[1].Weight != 90 || g[0].Canary == nil || r.current(st) != 1 {
		t.Errorf("generations %+v", g)
	}
	for i, f := range r.alive(1) {
		if len(f.udp(0)) != 1 || len(f.tcp(0)) != 1 || len(r.alive(2)[i].udp(0)) != 0 {
			t.Error("the canary reads in the place of the current generation")
		}
	}
	if o := r.mustOrder("promote"); o.Generation != 2 || !strings.Contains(o.Canary.Verdict, "promoted") {
		t.Errorf("operation %+v", o)
	}
	st = r.waitFor("promoted", func(st *Status) bool { return r.current(st) == 2 && r.stateOf(st, 1) == GenerationDraining })
	if c := r.choice(); c != (shm.Choice{Current: 2}) || st.Generations[0].Weight != 100 || st.Generations[0].Canary != nil {
		t.Errorf("admission %+v, %+v", c, st.Generations[0])
	}
	r.waitFor("sockets handed over", func(*Status) bool {
		return len(r.alive(2)[0].udp(0)) == 1 && len(r.alive(1)[0].udp(0)) == 0
	})
	if _, refusal := r.order("promote"); !strings.Contains(refusal.Reason, "no canary") {
		t.Errorf("refusal %+v", refusal)
	}
}

func TestCanaryIsRolledBack(t *testing.T) { // C050
	r, _ := onTrial(t, UpgradeRequest{Canary: 50}, nil)
	if o := r.mustOrder("rollback"); o.Generation != 1 || !strings.Contains(o.Canary.Verdict, "rolled back") {
		t.Errorf("operation %+v", o)
	}
	if c := r.choice(); c != (shm.Choice{Current: 1}) {
		t.Errorf("admission %+v", c)
	}
	st := r.waitFor("draining", func(st *Status) bool { return r.stateOf(st, 2) == GenerationDraining })
	if st.Counters.Rollbacks != 1 || r.current(st) != 1 {
		t.Errorf("status %+v", st)
	}
	for _, f := range r.alive(1) {
		if len(f.drains) != 0 || len(f.udp(0)) != 1 {
			t.Error("the current generation has noticed")
		}
	}
	r.waitFor("no TCP at the canary", func(*Status) bool { return len(r.alive(2)) == 2 && len(r.alive(2)[0].tcp(0)) == 0 })
	if _, refusal := r.order("rollback"); !strings.Contains(refusal.Reason, "was the first") {
		t.Errorf("refusal %+v", refusal)
	}
	// The next upgrade starts from here.
	r.mustUpgrade(UpgradeRequest{Binary: program(t, t.TempDir(), "third")})
}

// Back and forth: the generation before serves again, with its own processes,
// and what was closed or has ended meanwhile is made again.
func TestRollbackAfterPromotion(t *testing.T) {
	r, _ := onTrial(t, UpgradeRequest{Canary: 1}, nil)
	r.mustOrder("promote")
	r.waitFor("draining", func(st *Status) bool { return r.stateOf(st, 1) == GenerationDraining })
	old := r.alive(1)
	old[1].exit(exit{known: true}) // was idle
	r.waitFor("one of two", func(*Status) bool { return len(r.alive(1)) == 1 })
	if o := r.mustOrder("rollback"); o.Generation != 1 {
		t.Errorf("operation %+v", o)
	}
	st := r.waitFor("current again", func(st *Status) bool {
		return r.current(st) == 1 && r.stateOf(st, 2) == GenerationDraining && len(r.alive(1)) == 2
	})
	if c := r.choice(); c != (shm.Choice{Current: 1}) || st.Counters.Rollbacks != 1 {
		t.Errorf("admission %+v, %d rollbacks", c, st.Counters.Rollbacks)
	}
	r.waitFor("sockets are back", func(st *Status) bool {
		a := r.alive(1)
		return len(a) == 2 && len(a[0].udp(0)) == 1 && len(a[1].udp(0)) == 1 && len(a[0].tcp(0)) == 1 &&
			len(r.alive(2)[0].udp(0)) == 0 && !st.Degraded
	})
	old[0].mu.Lock()
	if old[0].undrain != 1 {
		t.Error("the drain was not taken back")
	}
	old[0].mu.Unlock()
	// And once more, by way of another generation.
	r.mustUpgrade(UpgradeRequest{Binary: program(t, t.TempDir(), "third")})
	r.mustOrder("rollback")
	r.waitFor("current for the third time", func(st *Status) bool { return r.current(st) == 1 && r.stateOf(st, 3) == GenerationDraining })
	for _, f := range r.alive(2) {
		if len(f.drains) == 0 {
			t.Error("generation 2 does not drain")
		}
	}
}

func TestRollbackToWhatHasEnded(t *testing.T) {
	r := newRunning(t, func(r *rig) { withPrograms(r); r.spec.Probation = time.Nanosecond })
	r.mustReload() // its workers are idle and end at once
	r.waitFor("ended", func(st *Status) bool { return len(st.Generations) == 1 })
	if _, refusal := r.order("rollback"); !strings.Contains(refusal.Reason, "generation 1, which was current before, has ended") {
		t.Errorf("refusal %+v", refusal)
	}
}

func TestNothingElseBeginsDuringACanary(t *testing.T) {
	r, _ := onTrial(t, UpgradeRequest{Canary: 5}, nil)
	if code, reason := r.reload(); code != http.StatusConflict || !strings.Contains(reason.Reason, "promote it or roll it back first") {
		t.Errorf("reload: %d %+v", code, reason)
	}
	if code, body := r.call(http.MethodPost, "/v1/upgrade", UpgradeRequest{}); code != http.StatusConflict || !strings.Contains(string(body), "canary") {
		t.Errorf("upgrade: %d %s", code, body)
	}
	st := r.waitFor("failure", func(st *Status) bool { return st.Counters.ReloadsFailed == 1 })
	if l := st.LastFailure; l == nil || l.What != OperationReload {
		t.Errorf("last failure %+v", l)
	}
	r.mustOrder("promote")
	r.mustReload()
}

// A worker of either generation is replaced by its like; the share stays.
func TestCrashesDuringACanary(t *testing.T) {
	r, _ := onTrial(t, UpgradeRequest{Canary: 20}, nil)
	for _, id := range []uint32{1, 2} {
		r.alive(id)[0].exit(exit{status: 2, known: true})
		r.waitFor("replaced", func(st *Status) bool {
			for _, g := range st.Generations {
				if g.Missing > 0 {
					return false
				}
			}
			return len(r.alive(id)) == 2
		})
	}
	if c := r.choice(); c.Canary != 2 {
		t.Errorf("admission %+v", c)
	}
}

func TestBadCanaryIsRolledBackByItself(t *testing.T) {
	probes := atomic.Bool{}
	for _, tc := range []struct {
		name, reason string
		spoil        func(r *rig)
	}{
		{"crash", "exit status 2", func(r *rig) { r.alive(2)[0].exit(exit{status: 2, known: true}) }},
		{"probe", "probes in a row", func(*rig) { probes.Store(true) }},
		{"handshakes", "10 of 10 handshakes failed, of the current generation 0 of 100", func(r *rig) {
			r.count(2, shm.QUICAccepted, 10)
			r.count(1, shm.QUICAccepted, 100)
			r.count(2, shm.HandshakesFailed, 10)
		}},
		{"errors", "requests failed", func(r *rig) {
			r.count(1, shm.Requests, 900)
			r.count(1, shm.RequestErrors, 3)
			r.count(2, shm.Requests, 100)
			r.count(2, shm.RequestErrors, 20)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			probes.Store(false)
			r, id := onTrial(t, UpgradeRequest{Canary: 10, Soak: time.Hour, Auto: true}, func(r *rig) {
				r.opt.Probe = func(context.Context, ProbeTarget) error {
					if probes.Load() {
						return errors.New("no answer")
					}
					return nil
				}
			})
			tc.spoil(r)
			o := r.result(id)
			if o.State != OperationFailed || !strings.Contains(o.Reason, tc.reason) || o.Canary == nil || !strings.Contains(o.Canary.Verdict, "rolled back") {
				t.Errorf("operation %+v, %+v", o, o.Canary)
			}
			if c := r.choice(); c != (shm.Choice{Current: 1}) {
				t.Errorf("admission %+v", c)
			}
			st := r.waitFor("draining", func(st *Status) bool { return r.stateOf(st, 2) != GenerationCanary })
			if st.Counters.Rollbacks != 1 || st.Counters.UpgradesFailed != 1 {
				t.Errorf("counters %+v", st.Counters)
			}
		})
	}
}

// count adds to a counter of the first worker of a generation.
func (r *rig) count(id shm.Generation, c shm.Counter, n uint64) {
	_ = r.s.call(r.t.Context(), func(s *Supervisor) {
		for w := range s.workers {
			if w.gen.id == id && w.member.index == 0 {
				s.seg.Counters(w.slot).Add(c, n)
			}
		}
	})
}

func TestGoodCanaryIsPromotedByItself(t *testing.T) {
	r, id := onTrial(t, UpgradeRequest{Canary: 10, Soak: 50 * time.Millisecond, Auto: true}, func(r *rig) { r.spec.Probation = time.Nanosecond })
	o := r.result(id)
	if o.State != OperationDone || o.Canary == nil || !strings.Contains(o.Canary.Verdict, "promoted: no worse") {
		t.Errorf("operation %+v", o)
	}
	r.waitFor("current", func(st *Status) bool { return r.current(st) == 2 })
}

// Without --auto the soak ends with a verdict and leaves the decision open.
func TestSoakEndsWithAVerdict(t *testing.T) {
	r, id := onTrial(t, UpgradeRequest{Canary: 10, Soak: 50 * time.Millisecond}, nil)
	o := r.result(id)
	if o.State != OperationDone || o.Canary == nil || !strings.Contains(o.Canary.Verdict, "no worse") {
		t.Errorf("operation %+v", o)
	}
	if c := r.choice(); c.Canary != 2 {
		t.Errorf("admission %+v", c)
	}
	r.mustOrder("rollback")
}

func TestStopDuringACanary(t *testing.T) {
	for _, fast := range []bool{false, true} {
		r, _ := onTrial(t, UpgradeRequest{Canary: 10, Soak: time.Hour, Auto: true}, nil)
		kind := stopGraceful
		if fast {
			kind = stopFast
		}
		r.s.post(stopEvent{kind})
		if !fast { // which ends before anybody can look
			r.waitFor("all drain", func(st *Status) bool { return st.Stopping && r.current(st) == 0 })
			if c := r.choice(); c != (shm.Choice{}) {
				t.Errorf("admission %+v", c)
			}
			for _, f := range r.alive(0) {
				f.exit(exit{known: true})
			}
		}
		if err := r.wait(); err != nil {
			t.Error(err)
		}
	}
}

// A canary whose workers do not take the sockets over stays a canary.
func TestPromotionFails(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the time that workers have")
	}
	deaf := atomic.Bool{}
	r, _ := onTrial(t, UpgradeRequest{Canary: 10}, func(r *rig) {
		r.script.onReaders = func(f *fakeWorker) bool { return f.welcome.Generation == 1 || !deaf.Load() }
	})
	deaf.Store(true)
	o, refusal := r.order("promote")
	if o == nil || o.State != OperationFailed || !strings.Contains(o.Reason, "did not start to read") {
		t.Errorf("operation %+v, %+v", o, refusal)
	}
	st := r.waitFor("still a canary", func(st *Status) bool { return r.stateOf(st, 2) == GenerationCanary })
	if c := r.choice(); c.Canary != 2 || r.current(st) != 1 {
		t.Errorf("admission %+v", c)
	}
	r.mustOrder("rollback")
}

// Workers that know no turns would take all TCP connections.
func TestACanaryNeedsWorkersThatKnowTurns(t *testing.T) {
	r := newRunning(t, func(r *rig) {
		withPrograms(r)
		r.script.hello = func(h *lifeline.Hello) { h.ABIMinor = 0 }
	})
	next := program(t, t.TempDir(), "next")
	if code, body := r.call(http.MethodPost, "/v1/upgrade", UpgradeRequest{Binary: next, Canary: 5}); code != http.StatusConflict || !strings.Contains(string(body), "without one first") {
		t.Errorf("%d %s", code, body)
	}
	r.with(func() { r.script.hello = nil })
	r.mustUpgrade(UpgradeRequest{Binary: next})
	r.with(func() { r.script.hello = func(h *lifeline.Hello) { h.ABIMinor = 0 } })
	o := r.result(r.ask(UpgradeRequest{Binary: program(t, t.TempDir(), "older"), Canary: 5}))
	if o.State != OperationFailed || !strings.Contains(o.Reason, "segment ABI 1.0") {
		t.Errorf("%+v", o)
	}
}

func TestClearlyWorse(t *testing.T) {
	for _, tc := range []struct {
		failed, all, otherFailed, otherAll uint64
		want                               bool
	}{
		{0, 0, 0, 0, false},
		{2, 2, 0, 1000, false},     // too few to tell
		{3, 3, 0, 1000, true},      // all of them
		{3, 1000, 0, 99000, false}, // next to nothing
		{30, 100, 270, 900, false}, // as bad as the others
		{40, 100, 90, 900, true},
		{12, 100, 90, 900, false}, // chance
		{5, 10, 0, 0, true},       // nothing to hold it against
		{9, 3, 0, 10, true},       // more than all: damage
	} {
		if got := clearlyWorse(tc.failed, tc.all, tc.otherFailed, tc.otherAll); got != tc.want {
			t.Errorf("%+v", tc)
		}
	}
}

func unmarshal(t *testing.T, body []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(body, into); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
}
