package supervisor

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/shm"
)

func TestPulse(t *testing.T) {
	var p pulse
	for i, step := range []struct {
		beat          int64
		hung, changed bool
	}{
		{0, false, false}, // has not begun to beat
		{0, false, false},
		{0, false, false},
		{0, false, false},
		{5, false, false},
		{5, false, false},
		{5, false, false},
		{5, true, true},
		{5, true, false},
		{4, false, true}, // whatever it is, it is new
		{6, false, false},
		{6, false, false},
		{0, false, false},
	} {
		if changed := p.look(step.beat); changed != step.changed || p.hung != step.hung {
			t.Errorf("look %d: hung %v, changed %v", i, p.hung, changed)
		}
	}
}

func TestReadersOfAGeneration(t *testing.T) {
	worker := func(state workerState, hung bool) *member {
		return &member{w: &worker{state: state, pulse: pulse{hung: hung}}}
	}
	for _, tt := range []struct {
		members []*member
		want    []bool
	}{
		{[]*member{worker(workerServing, false), worker(workerServing, true), worker(workerDraining, false)}, []bool{true, false, true}},
		{[]*member{worker(workerServing, true), worker(workerServing, true)}, []bool{true, true}},
		{[]*member{worker(workerServing, true), {}, worker(workerReady, false), worker(workerKilled, false)}, []bool{true, false, false, false}},
	} {
		if got := (&generation{members: tt.members}).readers(); !slices.Equal(got, tt.want) {
			t.Errorf("readers %v, not %v", got, tt.want)
		}
	}
}

// hearts beat for fake workers until they are stopped.
type hearts struct {
	mu      sync.Mutex
	stopped map[*fakeWorker]bool
}

func (h *hearts) stop(f *fakeWorker, stopped bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopped[f] = stopped
}

// hearts gives all workers one, until the test ends. It returns when those of
// the first generation beat.
func (r *rig) hearts() *hearts {
	h := &hearts{stopped: map[*fakeWorker]bool{}}
	end, ended := make(chan struct{}), make(chan struct{})
	r.t.Cleanup(func() { close(end); <-ended })
	go func() {
		defer close(ended)
		tick := time.NewTicker(testLook / 4)
		defer tick.Stop()
		for n := int64(1); ; n++ {
			select {
			case <-tick.C:
			case <-end:
				return
			}
			for _, f := range r.alive(0) {
				f.mu.Lock()
				welcome := f.welcome
				f.mu.Unlock()
				h.mu.Lock()
				beats := welcome != nil && !h.stopped[f]
				h.mu.Unlock()
				if beats {
					r.s.seg.Directory().Beat(shm.SlotID(welcome.Slot), n)
				}
			}
		}
	}()
	for _, f := range r.alive(1) {
		r.waitFor("hearts beat", func(*Status) bool { return r.s.seg.Directory().Record(shm.SlotID(f.welcome.Slot)).Heartbeat > 0 })
	}
	return h
}

// serving are the slots that new connections may be sent to.
func (r *rig) serving() (out []shm.SlotID) {
	for i := range smallGeometry.Slots {
		if slot := shm.SlotID(i); r.s.seg.Directory().Record(slot).Serving {
			out = append(out, slot)
		}
	}
	return out
}

func TestSocketsOfAHungWorkerAreRead(t *testing.T) {
	r := newRunning(t, func(r *rig) { r.spec.Liveness = -1 })
	h := r.hearts()
	hung, sibling := r.alive(1)[0], r.alive(1)[1]
	own := hung.udp(0)
	for range 2 {
		r.waitFor("all well", func(st *Status) bool {
			return !st.Generations[0].Workers[0].Hung && len(sibling.udp(0)) == 1 && len(r.serving()) == 2
		})
		h.stop(hung, true)
		r.waitFor("sibling reads both", func(st *Status) bool {
			return st.Generations[0].Workers[0].Hung && len(sibling.udp(0)) == 2 && len(r.serving()) == 1
		})
		if got := hung.udp(0); !slices.Equal(got, own) {
			t.Errorf("the hung worker was told to read %v", got)
		}
		h.stop(hung, false)
	}
	st := r.waitFor("given back", func(st *Status) bool { return len(sibling.udp(0)) == 1 && len(r.serving()) == 2 })
	if st.Counters.WorkerCrashes != 0 || len(r.alive(1)) != 2 {
		t.Errorf("crashes %d, alive %d", st.Counters.WorkerCrashes, len(r.alive(1)))
	}
}

func TestWorkerThatHangsTooLongIsReplaced(t *testing.T) {
	r := newRunning(t, func(r *rig) { r.spec.Liveness = 10 * testLook })
	h := r.hearts()
	hung := r.alive(1)[0]
	h.stop(hung, true)
	began := time.Now()
	st := r.waitFor("replaced", replaced)
	if took := time.Since(began); took < 8*testLook {
		t.Errorf("replaced after %v", took)
	}
	if r.current(st) != 1 || st.Counters.WorkerCrashes != 1 {
		t.Errorf("generations %+v, crashes %d", st.Generations, st.Counters.WorkerCrashes)
	}
}

func TestHungDrainingWorkerIsLeftToItsDeadline(t *testing.T) {
	r := newRunning(t, func(r *rig) {
		r.script.onDrain = stays
		r.spec.Liveness = 5 * testLook
	})
	h := r.hearts()
	old := r.alive(1)[0]
	r.mustReload()
	h.stop(old, true)
	st := r.waitFor("hung", func(st *Status) bool { return st.Generations[1].Workers[0].Hung })
	var missed int
	for missed < 10 {
		if err := r.s.call(t.Context(), func(s *Supervisor) {
			for w := range s.workers {
				if w.proc == process(old) {
					missed = w.pulse.missed
				}
			}
		}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(testLook / 4)
	}
	if st.Counters.WorkerCrashes != 0 || len(r.alive(1)) != 2 {
		t.Errorf("crashes %d, alive %d", st.Counters.WorkerCrashes, len(r.alive(1)))
	}
}
