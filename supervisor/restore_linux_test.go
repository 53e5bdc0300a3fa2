package supervisor

import (
	"bytes"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
	"github.com/holdfast-quic/holdfast/shm"
)

var errCrashed = errors.New("killed")

// crash ends the supervisor as kill -9 does: the workers hear nothing and all
// files stay.
func (r *rig) crash() {
	r.t.Helper()
	if err := r.s.call(r.t.Context(), func(s *Supervisor) {
		s.finished, s.stopped = true, errCrashed
		s.state.path, s.slots.dir, s.inst.keep = "", "", true
		for w := range s.workers {
			if w.conn != nil {
				w.conn.Close()
			}
		}
		for _, g := range s.generations { // as the end of the process would
			g.payload.Close()
			g.image.release()
			g.self.release()
		}
	}); err != nil {
		r.t.Fatal(err)
	}
	if err := r.wait(); !errors.Is(err, errCrashed) {
		r.t.Fatal(err)
	}
}

// settled waits until the state file says what is.
func (r *rig) settled() {
	r.t.Helper()
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		var same bool
		if err := r.s.call(r.t.Context(), func(s *Supervisor) {
			now, err := s.snapshot().settled()
			same = err == nil && sameDocument(s.state.content, now)
		}); err != nil {
			r.t.Fatal(err)
		}
		if same {
			return
		}
	}
	r.t.Fatal("the state file does not follow")
}

// successor is another supervisor of the same instance, over the same
// processes.
func (r *rig) successor(adjust func(n *rig)) *rig {
	return newRig(r.t, func(n *rig) {
		n.opt.RuntimeDir, n.opt.StateDir = r.opt.RuntimeDir, r.opt.StateDir
		n.before, n.nextPID = r, r.nextPID
		n.spec = r.spec
		if adjust != nil {
			adjust(n)
		}
	})
}

// orphan is a process that its present supervisor did not start.
type orphan struct{ *fakeWorker }

func (orphan) Reap() exit { return exit{} }

func (r *rig) find(pid int, started uint64) (process, error) {
	for n := r; n != nil; n = n.before {
		n.mu.Lock()
		workers := slices.Clone(n.workers)
		n.mu.Unlock()
		for _, f := range workers {
			f.mu.Lock()
			ended := f.end != nil
			f.mu.Unlock()
			if f.pid == pid && !ended && (started == 0 || started == f.began) {
				return orphan{f}, nil
			}
		}
	}
	return nil, os.ErrProcessDone
}

func (r *rig) startTime(pid int) uint64 {
	if p, err := r.find(pid, 0); err == nil {
		return p.(orphan).began
	}
	return 0
}

func pids(st *Status) []int {
	var out []int
	for _, g := range st.Generations {
		for _, w := range g.Workers {
			out = append(out, w.PID)
		}
	}
	slices.Sort(out)
	return out
}

func TestTakeOver(t *testing.T) {
	r := newRunning(t, func(r *rig) {
		r.spec.Payload = []byte(secretPayload)
		r.spec.Drain.Timeout = time.Hour
		r.script.onDrain = func(*fakeWorker) {} // stays
	})
	r.mustReload()
	before := r.waitFor("two generations", func(st *Status) bool { return len(st.Generations) == 2 && r.current(st) == 2 })
	r.settled()
	r.crash()

	n := r.successor(func(n *rig) { n.loadErr = errors.New("the configuration is broken by now") })
	n.run()
	after := n.waitFor("the same workers", func(st *Status) bool { return n.current(st) == 2 && len(pids(st)) == 4 })
	if !slices.Equal(pids(before), pids(after)) {
		t.Errorf("workers were %v, are %v", pids(before), pids(after))
	}
	if len(n.workers) != 0 || n.binds.Load() != 0 || n.loads != 0 {
		t.Errorf("%d processes, %d sockets and %d loads", len(n.workers), n.binds.Load(), n.loads)
	}
	for i, g := range before.Generations {
		now := after.Generations[i]
		if g.ID != now.ID || g.State != now.State || g.ConfigHash != now.ConfigHash || g.Drain != now.Drain {
			t.Errorf("was %+v\nis  %+v", g, now)
		}
		if (g.Deadline == nil) != (now.Deadline == nil) || g.Deadline != nil && now.Deadline.Sub(*g.Deadline).Abs() > 100*time.Millisecond {
			t.Errorf("deadline was %v, is %v", g.Deadline, now.Deadline)
		}
	}
	if after.Counters.ReloadsOK != 1 || after.Started.Sub(before.Started).Abs() > 100*time.Millisecond {
		t.Errorf("counters %+v, started %v", after.Counters, after.Started)
	}
	if was, is := before.Listeners[0], after.Listeners[0]; was.ID != is.ID || !slices.Equal(was.UDP, is.UDP) || !slices.Equal(was.TCP, is.TCP) {
		t.Errorf("listener was %+v, is %+v", was, is)
	}

	// It goes on: a reload, with numbers that were never used, and its end.
	n.with(func() { n.loadErr = nil })
	n.mustReload()
	st := n.waitFor("the third generation", func(st *Status) bool { return n.current(st) == 3 })
	for _, g := range st.Generations {
		for _, w := range g.Workers {
			if g.ID == 3 && w.Incarnation <= 4 {
				t.Errorf("incarnation %d again", w.Incarnation)
			}
		}
	}
	for _, f := range r.alive(2) {
		n.waitFor("the drain of the generation that was taken over", func(*Status) bool { return len(f.drained()) == 1 })
	}
}

func TestTakeOverRestoresReaders(t *testing.T) {
	r := newRunning(t, nil)
	st := r.waitFor("running", func(st *Status) bool { return r.current(st) == 1 })
	r.settled()
	workers := r.alive(1)
	want := [][]int{workers[0].udp(0), workers[1].udp(0)}
	seq := workers[0].readers.Seq
	r.crash()
	n := r.successor(nil)
	n.run()
	n.waitFor("taken over", func(st *Status) bool { return n.current(st) == 1 })
	n.waitFor("readers", func(*Status) bool {
		workers[0].mu.Lock()
		defer workers[0].mu.Unlock()
		return workers[0].readers.Seq > seq
	})
	for i, f := range workers {
		n.waitFor("the same readers", func(*Status) bool { return slices.Equal(f.udp(0), want[i]) && len(f.tcp(0)) == 1 })
	}
	_ = st
}

func TestTakeOverReplacesTheDead(t *testing.T) {
	r := newRunning(t, nil)
	r.settled()
	r.crash()
	dead := r.alive(1)[0]
	dead.exit(exit{status: 2, known: true})
	n := r.successor(nil)
	n.run()
	st := n.waitFor("a replacement", func(st *Status) bool {
		return len(st.Generations) == 1 && st.Generations[0].Missing == 0 && len(pids(st)) == 2
	})
	if slices.Contains(pids(st), dead.pid) || st.Counters.WorkerCrashes != 1 || n.current(st) != 1 {
		t.Errorf("%+v", st)
	}
	if st.Slots.Used != 2 {
		t.Errorf("%d slots", st.Slots.Used)
	}
}

func TestTakeOverUndoesAReload(t *testing.T) {
	for name, state := range map[string]GenerationState{"starting": GenerationStarting, "probed": GenerationProbed} {
		t.Run(name, func(t *testing.T) {
			r := newRunning(t, nil)
			r.with(func() {
				switch state {
				case GenerationStarting:
					r.script.onWelcome = func(*fakeWorker) bool { return false }
				default:
					r.script.onReaders = func(*fakeWorker) bool { return false }
				}
			})
			go r.call("POST", "/v1/reload", nil)
			r.waitFor("a reload under way", func(st *Status) bool { return len(st.Generations) == 2 && st.Generations[0].State == state })
			r.settled()
			r.crash()
			n := r.successor(nil)
			n.run()
			st := n.waitFor("one generation", func(st *Status) bool { return len(st.Generations) == 1 && n.current(st) == 1 })
			if st.Counters.ReloadsFailed != 1 || st.LastFailure == nil || st.LastFailure.What != OperationReload {
				t.Errorf("%+v %+v", st.Counters, st.LastFailure)
			}
			if alive := r.alive(2); len(alive) != 0 {
				t.Errorf("%d workers of the generation that was undone", len(alive))
			}
			n.mustReload()
			n.waitFor("a generation of its own number", func(st *Status) bool { return n.current(st) == 3 })
		})
	}
}

func TestTakeOverFinishesAReload(t *testing.T) {
	r := newRunning(t, func(r *rig) { r.script.onDrain = func(*fakeWorker) {} })
	r.with(func() { r.script.onReaders = func(*fakeWorker) bool { return false } })
	go r.call("POST", "/v1/reload", nil)
	r.waitFor("a handover", func(st *Status) bool { return len(st.Generations) == 2 && st.Generations[0].State == GenerationProbed })
	r.settled()
	// Killed between the store of the admission word and all that follows.
	if err := r.s.call(t.Context(), func(s *Supervisor) { s.seg.Admission().Store(shm.Choice{Current: 2}) }); err != nil {
		t.Fatal(err)
	}
	r.crash()
	n := r.successor(nil)
	n.run()
	st := n.waitFor("the second generation", func(st *Status) bool { return n.current(st) == 2 && st.Generations[1].State == GenerationDraining })
	if st.Counters.ReloadsOK != 1 || st.Counters.ReloadsFailed != 0 {
		t.Errorf("%+v", st.Counters)
	}
	for _, f := range r.alive(1) {
		n.waitFor("the drain of the first", func(*Status) bool { return len(f.drained()) == 1 })
	}
}

func TestTakeOverWaitsForALateWorker(t *testing.T) {
	r := newRunning(t, nil)
	r.settled()
	late := r.alive(1)[1]
	release := make(chan struct{})
	late.mu.Lock()
	late.hold = release
	late.mu.Unlock()
	r.crash()
	n := r.successor(nil)
	n.run()
	n.waitFor("one of two", func(st *Status) bool { return n.current(st) == 1 && len(pids(st)) == 2 })
	n.waitFor("its sockets read by the other", func(st *Status) bool {
		hung := 0
		for _, w := range st.Generations[0].Workers {
			if w.Hung {
				hung++
			}
		}
		return hung == 1 && len(r.alive(1)[0].udp(0)) == 2
	})
	close(release)
	n.waitFor("both again", func(st *Status) bool {
		return len(r.alive(1)[0].udp(0)) == 1 && len(late.udp(0)) == 1 && !st.Generations[0].Workers[1].Hung
	})
}

func TestNobodyAnswers(t *testing.T) {
	r := newRunning(t, nil)
	r.settled()
	workers := r.alive(1)
	for _, f := range workers {
		f.mu.Lock()
		f.hold = make(chan struct{})
		f.mu.Unlock()
	}
	r.crash()
	n := r.successor(nil)
	n.run()
	st := n.waitFor("another fleet", func(st *Status) bool { return n.current(st) == 1 && len(pids(st)) == 2 })
	if len(r.alive(1)) != 0 || slices.Contains(pids(st), workers[0].pid) {
		t.Errorf("%d of the old workers live", len(r.alive(1)))
	}
}

func TestStaleStateIsNotUsed(t *testing.T) { // C048, C049, C139
	spoil := func(change func(d *document)) func(path string) error {
		return func(path string) error {
			wire, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			d, err := decodeDocument(wire)
			if err != nil {
				return err
			}
			change(d)
			if wire, err = d.encode(); err != nil {
				return err
			}
			return os.WriteFile(path, wire, 0o600)
		}
	}
	for name, test := range map[string]struct {
		spoil func(path string) error
	}{
		"of another boot":       {spoil: spoil(func(d *document) { d.BootID = "another" })},
		"of recycled processes": {spoil: spoil(func(d *document) { d.Generations[0].Workers[0].StartTime++; d.Generations[0].Workers[1].StartTime++ })},
		"cut off":               {spoil: func(path string) error { return os.Truncate(path, 100) }},
		"empty":                 {spoil: func(path string) error { return os.Truncate(path, 0) }},
		"gone":                  {spoil: os.Remove},
		"a link": {spoil: func(path string) error {
			if err := os.Rename(path, path+".real"); err != nil {
				return err
			}
			return os.Symlink(path+".real", path)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRunning(t, nil)
			r.settled()
			r.crash()
			if err := test.spoil(filepath.Join(r.opt.RuntimeDir, stateName)); err != nil {
				t.Fatal(err)
			}
			n := r.successor(nil)
			n.run()
			st := n.waitFor("a fleet of its own", func(st *Status) bool { return n.current(st) == 1 && len(pids(st)) == 2 })
			if slices.Contains(pids(st), r.workers[0].pid) || len(r.alive(0)) != 0 {
				t.Errorf("%d workers of before live", len(r.alive(0)))
			}
		})
	}
}

func TestNewerStateIsRefused(t *testing.T) {
	r := newRunning(t, nil)
	r.settled()
	r.crash()
	path := filepath.Join(r.opt.RuntimeDir, stateName)
	wire, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	newer := bytes.Replace(wire, []byte(`{"version":1,`), []byte(`{"version":99,`), 1)
	if err := os.WriteFile(path, newer, 0o600); err != nil {
		t.Fatal(err)
	}
	n := r.successor(nil)
	if err := n.s.Run(t.Context()); !errors.Is(err, errNewerDocument) || !strings.Contains(err.Error(), "2 workers serve on") {
		t.Errorf("%v", err)
	}
	if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, newer) {
		t.Errorf("the state was touched: %v", err)
	}
	// The right version still takes them over.
	if err := os.WriteFile(path, wire, 0o600); err != nil {
		t.Fatal(err)
	}
	again := r.successor(nil)
	again.run()
	again.waitFor("taken over", func(st *Status) bool { return again.current(st) == 1 && slices.Contains(pids(st), r.workers[0].pid) })
}

func TestTakeOverOfAnotherABI(t *testing.T) {
	r := newRunning(t, nil)
	r.settled()
	for _, f := range r.alive(1) {
		f.mu.Lock()
		f.resume = func(m *lifeline.Resume) { m.ABIMajor++ }
		f.mu.Unlock()
	}
	r.crash()
	n := r.successor(nil)
	if err := n.s.Run(t.Context()); !errors.Is(err, shm.ErrABIVersion) || !strings.Contains(err.Error(), "2 workers serve on") {
		t.Errorf("%v", err)
	}
	if len(r.alive(1)) != 2 {
		t.Error("the workers were touched")
	}
	if left := handoverSlots(r.opt.RuntimeDir); len(left) != 2 {
		t.Errorf("handover sockets of %v", left)
	}
}

func TestManyTakeOvers(t *testing.T) {
	r := newRunning(t, nil)
	first := pids(r.waitFor("running", func(st *Status) bool { return r.current(st) == 1 }))
	var files int
	for i := range 10 {
		r.settled()
		r.crash()
		n := r.successor(nil)
		n.run()
		st := n.waitFor("taken over", func(st *Status) bool {
			return n.current(st) == 1 && slices.Equal(pids(st), first) && st.Generations[0].Missing == 0
		})
		if st.Counters.WorkerCrashes != 0 {
			t.Fatalf("%+v", st.Counters)
		}
		n.http.CloseIdleConnections()
		used, _, err := openFiles()
		if err != nil {
			t.Fatal(err)
		}
		if i == 2 {
			files = used
		}
		if i > 2 && used > files+8 {
			t.Errorf("%d descriptors after %d, %d after 3", used, i+1, files)
		}
		r = n
	}
	r.mustReload()
}

func TestHandoverSocketGoesWithTheWorker(t *testing.T) {
	r := newRunning(t, nil)
	if got := handoverSlots(r.opt.RuntimeDir); !slices.Equal(got, []shm.SlotID{0, 1}) {
		t.Errorf("sockets of %v", got)
	}
	if info, err := os.Stat(handoverPath(r.opt.RuntimeDir, 0)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	r.mustReload()
	r.waitFor("one generation", func(st *Status) bool { return len(st.Generations) == 1 })
	if got := handoverSlots(r.opt.RuntimeDir); !slices.Equal(got, []shm.SlotID{2, 3}) {
		t.Errorf("sockets of %v", got)
	}
	r.s.post(stopEvent{stopFast})
	if err := r.wait(); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(r.opt.RuntimeDir, "*")); len(left) != 1 { // the lock
		t.Errorf("left behind: %v", left)
	}
}

func TestLivingTellsStaleSocketsFromLiveOnes(t *testing.T) {
	dir := t.TempDir()
	live, err := lifeline.Listen(handoverPath(dir, 3))
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	stale, err := lifeline.Listen(handoverPath(dir, 4))
	if err != nil {
		t.Fatal(err)
	}
	stale.Close()
	if err := os.WriteFile(handoverPath(dir, 5), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "worker-x.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if n := Living(dir); n != 1 {
		t.Errorf("%d live", n)
	}
}

func TestUnpolled(t *testing.T) {
	sock, _, err := bindSocket(networkUDP, "127.0.0.1:0", socketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	again, err := net.FilePacketConn(sock)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	f, err := unpolled(sock)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.SetDeadline(time.Now()); !errors.Is(err, os.ErrNoDeadline) {
		t.Errorf("it is in the poller: %v", err)
	}
	if _, err := sock.Stat(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the first one is open: %v", err)
	}
	n, err := descriptor(f)
	if err != nil {
		t.Fatal(err)
	}
	if flags, err := unix.FcntlInt(uintptr(n), unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK == 0 {
		t.Errorf("it blocks now: %#x %v", flags, err)
	}
}

func TestRecycledProcessIsNotTaken(t *testing.T) { // C049
	own := os.Getpid()
	p, err := adoptProcess(own, startTime(own))
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	for name, test := range map[string]struct {
		pid   int
		start uint64
	}{"another start time": {own, startTime(own) + 1}, "no process": {1 << 29, 5}} {
		if p, err := adoptProcess(test.pid, test.start); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("%s: %v %v", name, p, err)
		}
	}
}
