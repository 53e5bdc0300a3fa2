package supervisor

import (
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
)

func stays(*fakeWorker) {}

func TestFirstStartAndStop(t *testing.T) {
	r := newRunning(t, nil)
	st := r.waitFor("serving", func(st *Status) bool { return len(st.Generations[0].Workers) == 2 })
	if st.PID != os.Getpid() || st.Config.Hash != "sha256:1" || st.Steering.Tier != "queue" || len(st.Listeners) != 1 {
		t.Errorf("status %+v", st)
	}
	if udp, tcp := st.Listeners[0].UDP, st.Listeners[0].TCP; len(udp) != 1 || len(tcp) != 1 || udp[0] != tcp[0] {
		t.Errorf("addresses udp %v tcp %v", udp, tcp)
	}
	for i, f := range r.alive(1) {
		if got := f.udp(0); len(got) != 1 || got[0] != i {
			t.Errorf("worker %d reads %v", i, got)
		}
		if got := f.tcp(0); len(got) != 1 {
			t.Errorf("worker %d accepts from %v", i, got)
		}
	}
	if code, body := r.call(http.MethodPost, "/v1/stop", nil); code != http.StatusOK {
		t.Errorf("stop: %d %s", code, body)
	}
	if err := r.wait(); err != nil {
		t.Errorf("Run: %v", err)
	}
	left, _ := filepath.Glob(filepath.Join(r.opt.RuntimeDir, "*"))
	if len(left) != 1 || filepath.Base(left[0]) != lockName {
		t.Errorf("left behind: %v", left)
	}
}

func TestStatusShowsWhatWasAskedForAndWhatThereIs(t *testing.T) {
	r := newRunning(t, nil)
	st := r.waitFor("serving", func(st *Status) bool { return r.current(st) == 1 })
	if s := st.Steering; s.Mode != SteeringAuto || s.Tier != "queue" || s.Reason == "" {
		t.Errorf("by default: %+v", s)
	}
	r.spec.Steering = SteeringQueue
	r.mustReload()
	st = r.waitFor("reloaded", func(st *Status) bool { return r.current(st) == 2 })
	if s := st.Steering; s.Mode != SteeringQueue || s.Tier != "queue" || !strings.Contains(s.Reason, "configuration") {
		t.Errorf("as configured: %+v", s)
	}
}

func TestReloadHandsTheSocketsOver(t *testing.T) {
	r := newRunning(t, func(r *rig) { r.script.onDrain = stays })
	before := r.binds.Load()
	r.mustReload()
	if n := r.binds.Load() - before; n != 0 { // C013
		t.Errorf("%d binds for unchanged listeners", n)
	}
	st := r.waitFor("handover", func(st *Status) bool { return r.current(st) == 2 })
	if st.Counters.ReloadsOK != 1 || st.Generations[1].State != GenerationDraining || st.Generations[1].Deadline == nil {
		t.Errorf("status %+v", st)
	}
	for _, f := range r.alive(1) {
		r.waitFor("a draining worker reads nothing", func(*Status) bool { return f.udp(0) == nil && f.tcp(0) == nil })
	}
	for i, f := range r.alive(2) {
		if got := f.udp(0); len(got) != 1 || got[0] != i {
			t.Errorf("worker %d reads %v", i, got)
		}
	}
}

func TestWorkerCountChanges(t *testing.T) {
	r := newRunning(t, nil)
	for _, workers := range []int{4, 1, 3} {
		r.with(func() { r.spec.Workers = workers })
		r.mustReload()
		st := r.waitFor("old one gone", func(st *Status) bool { return len(st.Generations) == 1 })
		read := map[int]int{}
		for _, f := range r.alive(uint32(r.current(st))) {
			for _, index := range f.udp(0) {
				read[index]++
			}
		}
		for index := range 4 { // sockets are never closed while the listener lives
			if read[index] != 1 {
				t.Errorf("%d workers: socket %d has %d readers: %v", workers, index, read[index], read)
			}
		}
	}
}

func TestFailedGenerationLeavesTheServingOne(t *testing.T) {
	late := func(f *fakeWorker) bool { return false }
	for _, tc := range []struct {
		name   string
		break_ func(r *rig)
		reason string
		code   string
	}{
		{"configuration", func(r *rig) { r.loadErr = errors.New("holdfast.yaml:3:5: no such key") }, "holdfast.yaml:3:5: no such key", CodeInvalidConfig},
		{"exits at once", func(r *rig) {
			r.script.onStart = func(f *fakeWorker) bool { f.exit(exit{status: 3, known: true}); return false }
		}, "of 2: exit status 3", CodeFailed},
		{"says why", func(r *rig) {
			r.script.onWelcome = func(f *fakeWorker) bool {
				f.send(&lifeline.Message{Kind: lifeline.KindFailed, Failed: &lifeline.Failed{Reason: "no such certificate"}})
				return false
			}
		}, "no such certificate", CodeFailed},
		{"never ready", func(r *rig) { r.script.onWelcome, r.spec.ReadyTimeout = late, 50*time.Millisecond }, "not ready within 50ms", CodeFailed},
		{"never says hello", func(r *rig) { r.script.onStart, r.spec.ReadyTimeout = late, 50*time.Millisecond }, "not ready within 50ms", CodeFailed},
		{"other protocol", func(r *rig) {
			r.script.hello = func(h *lifeline.Hello) { h.ProtocolMin, h.ProtocolMax = 90, 91 }
		}, "no common protocol version", CodeFailed},
		{"other ABI", func(r *rig) { r.script.hello = func(h *lifeline.Hello) { h.ABIMajor = 77 } }, "ABI version", CodeFailed},
		{"needs a restart", func(r *rig) { r.spec.Geometry.TableEntries *= 2 }, "table.entries has changed: it takes effect by a restart only", CodeInvalidConfig},
		{"too many workers", func(r *rig) { r.spec.Workers = 15 }, "15 needed, 14 free of 16", CodeFailed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRunning(t, nil)
			r.with(func() { tc.break_(r) })
			code, reason := r.reload()
			if code == http.StatusOK || !strings.Contains(reason.Reason, tc.reason) || strings.Contains(reason.Reason, "\n") || reason.Code != tc.code {
				t.Errorf("reload: %d %+v", code, reason)
			}
			st := r.waitFor("failed generation gone", func(st *Status) bool { return len(st.Generations) == 1 })
			if r.current(st) != 1 || st.Counters.ReloadsFailed != 1 || st.LastFailure == nil || st.LastFailure.Reason != reason.Reason {
				t.Errorf("status %+v", st)
			}
			for i, f := range r.alive(1) {
				if got := f.udp(0); len(got) != 1 || got[0] != i {
					t.Errorf("worker %d reads %v", i, got)
				}
			}
			r.with(func() {
				r.loadErr, r.script, r.spec.ReadyTimeout = nil, script{}, 0
				r.spec.Geometry, r.spec.Workers = smallGeometry, 2
			})
			r.mustReload()
		})
	}
}

func TestWorkerThatNeverReadsFailsTheReload(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the handover's limit")
	}
	r := newRunning(t, nil)
	r.with(func() { r.script.onReaders = func(*fakeWorker) bool { return false } })
	if _, reason := r.reload(); !strings.Contains(reason.Reason, "did not start to read") {
		t.Errorf("reload: %+v", reason)
	}
	st := r.waitFor("failed generation gone", func(st *Status) bool { return len(st.Generations) == 1 })
	if r.current(st) != 1 {
		t.Errorf("status %+v", st)
	}
}

func TestReloadsAreMerged(t *testing.T) { // C020, C021, C060
	hold := make(chan struct{})
	r := newRunning(t, nil)
	r.with(func() { r.script.onWelcome = func(*fakeWorker) bool { <-hold; return true } })
	var wg sync.WaitGroup
	first := make(chan int, 1)
	wg.Go(func() { code, _ := r.reload(); first <- code })
	r.waitFor("reload under way", func(st *Status) bool { return st.Reload == "starting" })
	for range 20 {
		r.sigs <- syscall.SIGHUP
	}
	later := make(chan int, 5)
	for range 5 {
		wg.Go(func() { code, _ := r.reload(); later <- code })
	}
	r.waitFor("all merged", func(st *Status) bool { return st.Counters.ReloadsMerged == 24 })
	close(hold)
	wg.Wait()
	if code := <-first; code != http.StatusOK {
		t.Errorf("first: %d", code)
	}
	for range 5 {
		if code := <-later; code != http.StatusOK {
			t.Errorf("merged: %d", code)
		}
	}
	st := r.waitFor("two reloads", func(st *Status) bool { return st.Counters.ReloadsOK == 2 })
	if r.current(st) != 3 || r.loads != 3 {
		t.Errorf("generation %d, %d loads", r.current(st), r.loads)
	}
}

func TestMinInterval(t *testing.T) { // C021
	r := newRunning(t, func(r *rig) { r.spec.MinInterval = 300 * time.Millisecond })
	start := time.Now()
	r.mustReload()
	for range 10 {
		r.sigs <- syscall.SIGHUP
	}
	r.mustReload()
	if d := time.Since(start); d < 300*time.Millisecond {
		t.Errorf("two reloads within %v", d)
	}
	st := r.waitFor("both", func(st *Status) bool { return st.Counters.ReloadsOK == 2 })
	if st.Counters.ReloadsMerged != 10 {
		t.Errorf("%d merged", st.Counters.ReloadsMerged)
	}
}

func TestMaxGenerationsWait(t *testing.T) {
	r := newRunning(t, func(r *rig) {
		r.spec.Drain.MaxGenerations, r.script.onDrain = 1, stays
	})
	r.mustReload()
	result := make(chan int, 2)
	go func() { code, _ := r.reload(); result <- code }()
	r.waitFor("waiting", func(st *Status) bool { return st.Reload == "waiting" })
	go func() { code, _ := r.reload(); result <- code }()
	r.waitFor("merged", func(st *Status) bool { return st.Counters.ReloadsMerged == 1 })
	r.with(func() { r.spec.ConfigHash = "sha256:2" }) // what counts is what is there when it runs
	for _, f := range r.alive(1) {
		f.exit(exit{known: true})
	}
	for range 2 {
		if code := <-result; code != http.StatusOK {
			t.Errorf("reload: %d", code)
		}
	}
	st := r.waitFor("third", func(st *Status) bool { return r.current(st) == 3 })
	if st.Config.Hash != "sha256:2" || len(st.Generations) != 2 {
		t.Errorf("status %+v", st)
	}
}

func TestMaxGenerationsEvict(t *testing.T) { // C009
	r := newRunning(t, func(r *rig) {
		r.spec.Drain.MaxGenerations, r.spec.Drain.Overflow, r.script.onDrain = 2, OverflowEvict, stays
	})
	for range 5 {
		r.mustReload()
		r.waitFor("bounded", func(st *Status) bool { return len(st.Generations) <= 3 })
	}
	st := r.waitFor("newest", func(st *Status) bool { return r.current(st) == 6 })
	if len(st.Generations) != 3 || st.Generations[2].ID != 4 {
		t.Errorf("status %+v", st.Generations)
	}
}

func TestPortInUse(t *testing.T) { // C012
	held, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	r := newRunning(t, nil)
	address := held.LocalAddr().String()
	r.with(func() {
		r.spec.Listeners = append(r.spec.Listeners[:1:1], ListenerSpec{Name: "new", Address: address, QUIC: true, TCP: true})
	})
	code, reason := r.reload()
	if code == http.StatusOK || !strings.Contains(reason.Reason, address) || !strings.Contains(reason.Reason, "process") {
		t.Errorf("reload: %d %+v", code, reason)
	}
	st := r.waitFor("untouched", func(st *Status) bool { return len(st.Generations) == 1 })
	if len(st.Listeners) != 1 {
		t.Errorf("listeners %+v", st.Listeners)
	}
	held.Close()
	r.mustReload()
	st = r.waitFor("second generation", func(st *Status) bool { return len(st.Generations) == 1 })
	if len(st.Listeners) != 2 || st.Listeners[1].UDP[0] != address {
		t.Errorf("listeners %+v", st.Listeners)
	}
}

func TestRemovedListenerIsReadByTheOldGeneration(t *testing.T) {
	r := newRunning(t, func(r *rig) {
		r.spec.Listeners = append(r.spec.Listeners, ListenerSpec{Name: "old", Address: "127.0.0.1:0", QUIC: true, TCP: true})
		r.script.onDrain = stays
	})
	r.with(func() { r.spec.Listeners = r.spec.Listeners[:1] })
	r.mustReload()
	for i, f := range r.alive(1) {
		r.waitFor("only the removed listener is read, and not accepted from", func(*Status) bool {
			got := f.udp(1)
			return len(got) == 1 && got[0] == i && f.udp(0) == nil && f.tcp(1) == nil
		})
	}
	st := r.waitFor("TCP closed", func(st *Status) bool { return len(st.Listeners) == 2 && len(st.Listeners[1].TCP) == 0 })
	if len(st.Listeners[1].UDP) != 1 {
		t.Errorf("listeners %+v", st.Listeners)
	}
	for _, f := range r.alive(1) {
		f.exit(exit{known: true})
	}
	r.waitFor("forgotten", func(st *Status) bool { return len(st.Listeners) == 1 })
}
