package supervisor

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
)

// halt holds an upgrade at one of its steps until it is released.
type halt struct {
	at      string
	release chan struct{}
	inExec  func()
}

// The steps at which the cells below are tried.
var upgradeSteps = []string{StageVerifying, "starting", "ready", "probed", StageSettling, StageExec}

func (h *halt) wait(step string) {
	if h.at == step {
		<-h.release
	}
}

// into makes a rig halt there. The first generation passes.
func (h *halt) into(r *rig) {
	withPrograms(r)
	r.spec.Probation = time.Hour
	r.spec.ReadyTimeout, r.spec.ProbeTimeout = 20*time.Second, 20*time.Second
	r.checker = func(c *fakeCheck) { h.wait(StageVerifying); c.accept(nil) }
	r.script.onDrain = stays
	old := func(f *fakeWorker) bool { return f.welcome.Generation == 1 }
	r.script.onWelcome = func(f *fakeWorker) bool {
		if old(f) {
			return true
		}
		go func() {
			h.wait("starting")
			f.send(&lifeline.Message{Kind: lifeline.KindReady})
		}()
		return false
	}
	first := true
	r.opt.Probe = func(ctx context.Context, _ ProbeTarget) error {
		r.mu.Lock()
		pass := first
		first = len(r.workers) <= 2
		r.mu.Unlock()
		if !pass && h.at == "ready" {
			select {
			case <-h.release:
			case <-ctx.Done():
			}
		}
		return ctx.Err()
	}
	r.script.onReaders = func(f *fakeWorker) bool {
		f.mu.Lock()
		seq := f.readers.Seq
		f.mu.Unlock()
		if old(f) {
			return true
		}
		go func() {
			h.wait("probed")
			f.send(&lifeline.Message{Kind: lifeline.KindReadersSet, ReadersSet: &lifeline.ReadersSet{Seq: seq}})
		}()
		return false
	}
	r.execute = func(*image) error {
		if h.inExec != nil {
			h.inExec()
			h.inExec = nil
		}
		return nil
	}
}

// reached waits until the first operation is at the step.
func (h *halt) reached(r *rig) {
	switch h.at {
	case "starting", "ready", "probed":
		r.waitFor(h.at, func(st *Status) bool { return st.Generations[0].ID == 2 && st.Generations[0].State.String() == h.at })
	case StageExec: // its event comes by the hook
	default:
		r.waitFor(h.at, func(st *Status) bool { return len(st.Operations) > 0 && st.Operations[0].Stage == h.at })
	}
}

// What else happens while an upgrade is under way, at each of its steps. None of
// it may touch the generation that serves, and after it the next upgrade works.
func TestUpgradeCells(t *testing.T) { // C032, C033, C036, C040
	type outcome struct {
		upgrade string // state of the operation in the end
		current uint32 // generation
	}
	for _, event := range []struct {
		name string
		do   func(r *rig, other string)
		want func(step string) outcome
	}{
		{"reload", func(r *rig, _ string) { r.s.post(signalEvent{syscall.SIGHUP}) }, func(string) outcome { return outcome{OperationDone, 3} }},
		{"the same upgrade", func(r *rig, _ string) { r.s.post(signalEvent{syscall.SIGUSR2}) }, func(step string) outcome {
			if step == StageExec {
				return outcome{OperationDone, 3} // it is heard by the new supervisor, which is done
			}
			return outcome{OperationDone, 2}
		}},
		{"another upgrade", func(r *rig, other string) {
			r.s.post(requestEvent{func(s *Supervisor) { _, _ = s.requestUpgrade(UpgradeRequest{Binary: other}) }})
		}, func(string) outcome { return outcome{OperationDone, 3} }},
		{"an old worker crashes", func(r *rig, _ string) { r.alive(1)[0].exit(exit{status: 2, known: true}) }, func(string) outcome { return outcome{OperationDone, 2} }},
		{"a new worker crashes", func(r *rig, _ string) {
			if alive := r.alive(2); len(alive) > 0 {
				alive[0].exit(exit{status: 2, known: true})
			}
		}, func(step string) outcome {
			if step == StageVerifying {
				return outcome{OperationDone, 2} // there is none
			}
			return outcome{OperationFailed, 1} // serves on, or again
		}},
	} {
		for _, step := range upgradeSteps {
			t.Run(event.name+", "+step, func(t *testing.T) {
				h := &halt{at: step, release: make(chan struct{})}
				r := newRunning(t, h.into)
				dir := t.TempDir()
				path, other := program(t, dir, "next"), program(t, dir, "other")
				_ = r.s.call(t.Context(), func(s *Supervisor) { s.program = path })
				if step == StageExec {
					r.with(func() { h.inExec = func() { go event.do(r, other) } })
				}
				id := r.ask(UpgradeRequest{})
				h.reached(r)
				serving := r.alive(1)
				if step != StageExec {
					event.do(r, other)
				}
				if event.want(step).upgrade == OperationFailed && step != StageExec {
					r.result(id)
				}
				r.waitFor("what was posted to be handled", func(*Status) bool { return true })
				close(h.release)
				want := event.want(step)
				st := r.waitFor(fmt.Sprint(want), func(st *Status) bool {
					for _, o := range st.Operations {
						if !o.ended() || o.ID == id && o.State != want.upgrade {
							return false
						}
					}
					return uint32(r.current(st)) == want.current && !st.Degraded
				})
				if event.name != "an old worker crashes" {
					for _, f := range serving {
						select {
						case <-f.ended:
							t.Errorf("a worker that served has ended: %+v", st)
						default:
						}
					}
				}
				o := r.mustUpgrade(UpgradeRequest{Binary: program(t, dir, "last")})
				if uint32(o.Generation) != want.current+1 && want.current != 1 {
					t.Errorf("the next one made generation %d", o.Generation)
				}
			})
		}
	}
}

// The end of the service comes first, whatever is under way.
func TestStopDuringUpgrade(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGQUIT} {
		for _, step := range upgradeSteps {
			t.Run(sig.String()+", "+step, func(t *testing.T) {
				h := &halt{at: step, release: make(chan struct{})}
				r := newRunning(t, func(r *rig) { h.into(r); r.script.onDrain = nil })
				defer close(h.release)
				if step == StageExec {
					r.with(func() { h.inExec = func() { go r.s.post(signalEvent{sig}) } })
				}
				r.ask(UpgradeRequest{Binary: program(t, t.TempDir(), "next")})
				h.reached(r)
				if step != StageExec {
					r.s.post(signalEvent{sig})
				}
				if err := r.wait(); err != nil {
					t.Errorf("Run: %v", err)
				}
				if left := r.alive(0); len(left) > 0 {
					t.Errorf("%d workers are left", len(left))
				}
				for _, c := range r.checks {
					select {
					case <-c.ended:
					case <-time.After(5 * time.Second):
						t.Error("a program that verifies is left")
					}
				}
			})
		}
	}
}
