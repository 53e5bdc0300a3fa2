package supervisor

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
	"github.com/holdfast-quic/holdfast/packetqueue"
	"github.com/holdfast-quic/holdfast/shm"
)

func (f *fakeWorker) kill() { _ = f.Signal(syscall.SIGKILL) }

// replaced holds when the third process serves in the place of another one.
func replaced(st *Status) bool {
	workers := st.Generations[0].Workers
	return len(workers) == 2 && workers[1].Incarnation == 3 && !st.Degraded
}

func TestCrashedWorkerIsReplaced(t *testing.T) {
	r := newRunning(t, nil)
	dead, sibling := r.alive(1)[0], r.alive(1)[1]
	hold := make(chan struct{})
	r.with(func() { r.script.onWelcome = func(*fakeWorker) bool { <-hold; return true } })
	dead.kill()
	r.waitFor("sibling reads both", func(st *Status) bool {
		return len(sibling.udp(0)) == 2 && st.Degraded && st.Counters.WorkerCrashes == 1
	})
	close(hold)
	st := r.waitFor("replaced", func(st *Status) bool { return !st.Degraded && len(sibling.udp(0)) == 1 })
	if len(st.Generations) != 1 || r.current(st) != 1 {
		t.Errorf("generations %+v", st.Generations)
	}
	fresh := st.Generations[0].Workers[1]
	if fresh.Restarts != 1 || fresh.Incarnation != 3 || fresh.Slot != 0 {
		t.Errorf("replacement %+v", fresh)
	}
	for _, f := range r.alive(1) {
		if f != sibling {
			r.waitFor("socket given back", func(*Status) bool { got := f.udp(0); return len(got) == 1 && got[0] == 0 })
		}
	}
}

func TestDeadWorkerIsReclaimed(t *testing.T) {
	r := newRunning(t, func(r *rig) { r.spec.Workers = 3 })
	dead, peer := r.alive(1)[0], r.alive(1)[1]
	token := packetqueue.Token(dead.welcome.Slot, dead.welcome.Incarnation)
	queue := func(f *fakeWorker) []byte { return r.s.seg.Queue(shm.SlotID(f.welcome.Slot)) }
	into, err := packetqueue.Lease(queue(peer), token, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := into.Push(&packetqueue.Record{Payload: []byte("left behind")}); err != nil {
		t.Fatal(err)
	}
	from, err := packetqueue.Lease(queue(dead), packetqueue.Token(peer.welcome.Slot, peer.welcome.Incarnation), 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := from.Push(&packetqueue.Record{Payload: []byte("for the dead")}); err != nil {
			t.Fatal(err)
		}
	}
	dead.kill()
	st := r.waitFor("reclaimed", func(st *Status) bool { return st.Counters.PacketsDropped["dead_queue"] == 3 })
	if st.Counters.WorkerCrashes != 1 {
		t.Errorf("crashes %d", st.Counters.WorkerCrashes)
	}
	if r.s.seg.Directory().Alive(shm.Owner{Slot: shm.SlotID(dead.welcome.Slot), Incarnation: shm.Incarnation(dead.welcome.Incarnation)}) {
		t.Error("the directory lists the dead as alive")
	}
	if err := from.Push(&packetqueue.Record{Payload: []byte("late")}); err == nil {
		t.Error("a push into a dead worker's queue went through")
	}
	if got := packetqueue.Pending(queue(peer)); got != 1 {
		t.Errorf("%d of the dead worker's packets wait, not 1", got)
	}
	if errs := checkSegment(r.s.seg, []shm.SlotID{1, 2}); len(errs) > 0 {
		t.Errorf("check: %v", errs)
	}
}

func TestCrashingDrainingWorkerIsNotReplaced(t *testing.T) { // C059
	r := newRunning(t, func(r *rig) {
		r.script.onDrain = stays
		r.spec.Listeners = append(r.spec.Listeners, ListenerSpec{Name: "old", Address: "127.0.0.1:0", QUIC: true})
	})
	r.with(func() { r.spec.Listeners = r.spec.Listeners[:1] })
	r.mustReload()
	old := r.alive(1)
	old[0].kill()
	st := r.waitFor("sibling reads the old listener", func(*Status) bool { return len(old[1].udp(1)) == 2 })
	if r.current(st) != 2 || len(st.Generations) != 2 {
		t.Errorf("generations %+v", st.Generations)
	}
	old[1].kill()
	st = r.waitFor("retired", func(st *Status) bool { return len(st.Generations) == 1 })
	if st.Counters.WorkerCrashes != 2 || len(r.alive(2)) != 2 {
		t.Errorf("crashes %d, alive %d", st.Counters.WorkerCrashes, len(r.alive(2)))
	}
}

func TestCrashDuringReload(t *testing.T) { // C059
	hold := make(chan struct{})
	r := newRunning(t, nil)
	r.with(func() { r.script.onWelcome = func(*fakeWorker) bool { <-hold; return true } })
	result := make(chan Error, 1)
	go func() { _, reason := r.reload(); result <- reason }()
	r.waitFor("under way", func(st *Status) bool { return st.Reload == "starting" && len(r.alive(2)) == 2 })
	r.alive(1)[0].kill() // of the serving generation: replaced, and no business of the reload
	r.waitFor("noticed", func(st *Status) bool { return st.Counters.WorkerCrashes == 1 })
	r.alive(2)[0].kill()
	if reason := <-result; !strings.Contains(reason.Reason, "killed by signal 9") {
		t.Errorf("reload: %+v", reason)
	}
	close(hold)
	st := r.waitFor("sound again", func(st *Status) bool { return len(st.Generations) == 1 && !st.Degraded })
	if r.current(st) != 1 {
		t.Errorf("generations %+v", st.Generations)
	}
	r.mustReload()
}

func TestReplacementIsForgottenWhenItsGenerationDrains(t *testing.T) {
	r := newRunning(t, func(r *rig) { r.script.onDrain = stays })
	r.with(func() {
		r.script.onStart = func(f *fakeWorker) bool { f.exit(exit{status: 1, known: true}); return false }
	})
	r.alive(1)[0].kill()
	// By then the next pause is long enough to reload in.
	r.waitFor("failing again and again", func(st *Status) bool { return st.Counters.WorkerCrashes >= 4 })
	r.with(func() { r.script.onStart = nil })
	r.mustReload()
	if err := r.s.call(t.Context(), func(s *Supervisor) {
		for _, g := range s.draining() {
			for _, m := range g.members {
				if m.timer != nil {
					t.Error("a worker of the draining generation is to be started")
				}
			}
		}
	}); err != nil {
		t.Error(err)
	}
}

func TestFirstStartGivesUp(t *testing.T) { // C053
	r := newRig(t, func(r *rig) {
		r.spec.StartTries = 3
		r.script.onStart = func(f *fakeWorker) bool { f.exit(exit{status: 7, known: true}); return false }
	})
	r.run()
	err := r.wait()
	if err == nil || !strings.Contains(err.Error(), "3 tries") || !strings.Contains(err.Error(), "exit status 7") {
		t.Errorf("Run: %v", err)
	}
}

// aPort is an address with a port that was free a moment ago.
func aPort(t *testing.T) string {
	t.Helper()
	f, bound, err := bindSocket(networkUDP, "127.0.0.1:0", socketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	return bound
}

func TestStartOnAHeldAddressFailsAtOnce(t *testing.T) {
	r := newRig(t, func(r *rig) { r.spec.Listeners[0].Address = aPort(t) })
	var looks atomic.Int64
	r.s.env.tryBind = func(network, address string) error {
		looks.Add(1)
		return &holderError{network: network, address: address, pid: 77}
	}
	start := time.Now()
	r.run()
	err := r.wait()
	if !errors.Is(err, ErrAddressInUse) || !strings.Contains(err.Error(), "process 77") || strings.Contains(err.Error(), "\n") {
		t.Errorf("Run: %v", err)
	}
	if took := time.Since(start); took > 2*time.Second || looks.Load() != 1 {
		t.Errorf("gave up after %v and %d looks", took, looks.Load())
	}
}

func TestWorkersAreKnownByTheirInstance(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	cmd.Env = append(workerEnviron(os.Environ()), envWorkerOf+"=/run/holdfast/edge")
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	// In the middle of its exec a process shows no environment.
	for until := time.Now().Add(5 * time.Second); !workerOf(cmd.Process.Pid, "/run/holdfast/edge"); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("a worker is not known")
		}
	}
	for _, dir := range []string{"/run/holdfast/edg", "/run/holdfast/edge2", ""} {
		if workerOf(cmd.Process.Pid, dir) {
			t.Errorf("taken for a worker of %q", dir)
		}
	}
	if workerOf(os.Getpid(), "/run/holdfast/edge") {
		t.Error("this process is taken for a worker")
	}
}

func TestFirstStartRecovers(t *testing.T) {
	r := newRig(t, func(r *rig) {
		tries := 0
		r.script.onStart = func(f *fakeWorker) bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			if tries++; tries <= 2 {
				f.exit(exit{status: 7, known: true})
				return false
			}
			return true
		}
	})
	r.run()
	r.waitFor("current", func(st *Status) bool { return r.current(st) > 1 })
}

func TestWorkerThatHangsUpIsKilled(t *testing.T) {
	r := newRunning(t, nil)
	victim := r.alive(1)[0]
	victim.conn.Close() // the process lives on
	st := r.waitFor("replaced", replaced)
	if r.current(st) != 1 {
		t.Errorf("generations %+v", st.Generations)
	}
}

func TestRubbishOnTheLifeline(t *testing.T) {
	r := newRunning(t, nil)
	f := r.alive(1)[0]
	f.send(&lifeline.Message{Kind: lifeline.KindReadersSet, ReadersSet: &lifeline.ReadersSet{Seq: 1 << 60}})
	f.send(&lifeline.Message{Kind: lifeline.KindPeerSet, Peer: &lifeline.Peer{Slot: 65535}})
	f.send(&lifeline.Message{Kind: lifeline.KindConnsReply, ConnsReply: &lifeline.ConnsReply{Seq: 99, Last: true}})
	f.send(&lifeline.Message{Kind: lifeline.KindReady})
	f.send(&lifeline.Message{Kind: lifeline.KindNonceRequest})
	f.send(&lifeline.Message{Kind: lifeline.KindDrained})
	f.send(&lifeline.Message{Kind: lifeline.KindHello, Hello: &lifeline.Hello{ProtocolMin: 1, ProtocolMax: 1, ABIMajor: shm.ABIMajor}})
	r.waitFor("ended for the second hello", replaced)
}

func TestDrainDeadline(t *testing.T) { // C004, C010
	r := newRunning(t, func(r *rig) {
		r.script.onDrain, r.script.onStop = stays, stays // outlives even the order to stop
		r.spec.Drain.Timeout = 500 * time.Millisecond
	})
	start := time.Now()
	r.mustReload()
	r.waitFor("killed", func(st *Status) bool { return len(st.Generations) == 1 })
	if d := time.Since(start); d < 500*time.Millisecond+killSlack || d > 500*time.Millisecond+3*killSlack {
		t.Errorf("gone after %v", d)
	}
}

func TestDrainOrderAndCancel(t *testing.T) {
	r := newRunning(t, func(r *rig) { r.script.onDrain = stays })
	r.mustReload()
	modes := func() (out []string) {
		f := r.alive(1)[0]
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, d := range f.drains {
			out = append(out, d.Mode)
		}
		return out
	}
	order := func(generation int, cancel bool) int {
		code, _ := r.call("POST", "/v1/drain", map[string]any{"generation": generation, "cancel": cancel})
		return code
	}
	if a, b, c, d := order(1, false), order(1, true), order(2, false), order(9, false); a != 200 || b != 200 || c != 409 || d != 404 {
		t.Errorf("drain: %d %d %d %d", a, b, c, d)
	}
	r.waitFor("orders", func(*Status) bool { return strings.Join(modes(), " ") == "hold goaway hold" })
}

func TestGracefulStopHasItsOwnLimit(t *testing.T) { // C025
	r := newRunning(t, func(r *rig) {
		r.script.onDrain = stays
		r.spec.Drain.StopTimeout = 200 * time.Millisecond
	})
	r.mustReload()
	start := time.Now()
	r.sigs <- syscall.SIGQUIT
	if err := r.wait(); err != nil {
		t.Errorf("Run: %v", err)
	}
	if d := time.Since(start); d < 100*time.Millisecond || d > 2200*time.Millisecond {
		t.Errorf("stopped after %v", d)
	}
}

func TestSecondQuitIsFast(t *testing.T) {
	r := newRunning(t, func(r *rig) { r.script.onDrain = stays })
	r.sigs <- syscall.SIGQUIT
	st := r.waitFor("draining", func(st *Status) bool { return st.Generations[0].State == GenerationDraining })
	if !st.Stopping || st.Generations[0].Drain != lifeline.DrainGoAway || len(st.Listeners[0].TCP) != 0 {
		t.Errorf("status %+v", st)
	}
	if len(r.alive(1)[0].udp(0)) == 0 {
		t.Error("nobody reads the sockets of live connections")
	}
	r.sigs <- syscall.SIGQUIT
	if err := r.wait(); err != nil {
		t.Errorf("Run: %v", err)
	}
}

func TestStopDuringReload(t *testing.T) {
	r := newRunning(t, nil)
	r.with(func() { r.script.onWelcome = func(*fakeWorker) bool { return false } })
	result := make(chan Error, 1)
	go func() { _, reason := r.reload(); result <- reason }()
	r.waitFor("under way", func(st *Status) bool { return st.Reload == "starting" })
	r.sigs <- syscall.SIGTERM
	if reason := <-result; reason.Code != CodeBusy {
		t.Errorf("reload: %+v", reason)
	}
	if err := r.wait(); err != nil {
		t.Errorf("Run: %v", err)
	}
}

func TestOtherSignals(t *testing.T) { // C061
	r := newRunning(t, nil)
	for _, sig := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH, syscall.SIGALRM} {
		r.sigs <- sig
	}
	r.mustReload()
}
