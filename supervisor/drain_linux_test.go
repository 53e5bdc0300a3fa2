package supervisor

import (
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
)

func TestGraceIsTheLastPartOfADrain(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct{ limit, grace, goodbye time.Duration }{
		{time.Hour, 5 * time.Second, time.Hour - 5*time.Second},
		{10 * time.Second, 5 * time.Second, 5 * time.Second},
		{time.Second, 5 * time.Second, 500 * time.Millisecond},
		{time.Second, 0, time.Second},
		{time.Second, -1, time.Second},
	} {
		span := spanOf(now, tt.limit, tt.grace)
		if span.end.Sub(now) != tt.limit || span.goodbye.Sub(now) != tt.goodbye {
			t.Errorf("%v with a grace of %v: goodbye after %v, end after %v", tt.limit, tt.grace, span.goodbye.Sub(now), span.end.Sub(now))
		}
	}
}

func TestLastGrace(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct{ grace, left, want time.Duration }{
		{5 * time.Second, 5 * time.Second, 5 * time.Second},
		{5 * time.Second, time.Hour, 5 * time.Second}, // evicted
		{5 * time.Second, time.Second, time.Second},
		{5 * time.Second, -time.Second, leastGrace},
		{-1, time.Hour, leastGrace},
	} {
		g := &generation{spec: &Spec{Drain: DrainSpec{Grace: tt.grace}}, deadline: now.Add(tt.left)}
		if got := g.lastGrace(now); got != tt.want {
			t.Errorf("grace %v with %v left: %v, not %v", tt.grace, tt.left, got, tt.want)
		}
	}
}

func TestListenersDrainForTheirOwnTime(t *testing.T) { // C015
	r := newRunning(t, func(r *rig) {
		r.script.onDrain = stays
		r.spec.Listeners = []ListenerSpec{
			{Name: "long", Address: "127.0.0.1:0", QUIC: true, DrainTimeout: 12 * time.Hour},
			{Name: "short", Address: "127.0.0.1:0", QUIC: true, DrainTimeout: 20 * time.Second},
			{Name: "other", Address: "127.0.0.1:0", QUIC: true},
		}
		r.spec.Drain.Timeout = 12 * time.Hour
		r.spec.Drain.StopTimeout = time.Minute
	})
	r.mustReload()
	orders := func() []lifeline.Drain {
		f := r.alive(1)[0]
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.drains
	}
	st := r.waitFor("drain order", func(*Status) bool { return len(orders()) == 1 })
	g := st.Generations[1]
	if g.Deadline == nil || time.Until(*g.Deadline) < 11*time.Hour {
		t.Errorf("deadline of the generation: %v", g.Deadline)
	}
	if short, ok := g.Limits["short"]; !ok || len(g.Limits) != 1 || time.Until(short) > 20*time.Second || time.Until(short) < 10*time.Second {
		t.Errorf("deadlines of listeners: %v", g.Limits)
	}
	limit, ok := orders()[0].Listeners[1]
	if !ok || len(orders()[0].Listeners) != 1 || limit.End > 20*time.Second || limit.End < 10*time.Second || limit.End-limit.Goodbye < 4*time.Second {
		t.Errorf("order: %+v", orders()[0])
	}
	// A later order has what is left, not the whole again.
	if code, _ := r.call("POST", "/v1/drain", map[string]any{"generation": 1}); code != 200 {
		t.Fatalf("drain: %d", code)
	}
	r.waitFor("second order", func(*Status) bool { return len(orders()) == 2 })
	if again := orders()[1].Listeners[1]; again.End >= limit.End {
		t.Errorf("%v left, %v before", again.End, limit.End)
	}
}
