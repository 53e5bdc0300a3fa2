package supervisor

import (
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
	"github.com/holdfast-quic/holdfast/shm"
)

// withPrograms lets a rig verify, and gives its instance a program on disk.
func withPrograms(r *rig) {
	r.opt.Verify = []string{"verify", "--config=test.yaml"}
	r.spec.Probation = -1
}

// program puts a native program into a directory.
func program(t *testing.T, dir, name string) string {
	t.Helper()
	content, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Skip(err)
	}
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, content, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// ask starts an upgrade and returns its number.
func (r *rig) ask(u UpgradeRequest) uint64 {
	r.t.Helper()
	code, body := r.call(http.MethodPost, "/v1/upgrade", u)
	if code != http.StatusAccepted {
		r.t.Fatalf("upgrade: %d %s", code, body)
	}
	var answer struct{ Operation uint64 }
	if err := json.Unmarshal(body, &answer); err != nil {
		r.t.Fatal(err)
	}
	return answer.Operation
}

// result waits for the end of an operation.
func (r *rig) result(id uint64) Operation {
	r.t.Helper()
	code, body := r.call(http.MethodGet, fmt.Sprintf("/v1/operations/%d?wait=10", id), nil)
	var o Operation
	if code != http.StatusOK || json.Unmarshal(body, &o) != nil || !o.ended() {
		r.t.Fatalf("operation %d: %d %s", id, code, body)
	}
	return o
}

func (r *rig) mustUpgrade(u UpgradeRequest) Operation {
	r.t.Helper()
	o := r.result(r.ask(u))
	if o.State != OperationDone {
		r.t.Fatalf("upgrade: %+v", o)
	}
	return o
}

func TestUpgrade(t *testing.T) { // C041
	r := newRunning(t, func(r *rig) { withPrograms(r); r.script.onDrain = stays })
	path := program(t, t.TempDir(), "next")
	o := r.mustUpgrade(UpgradeRequest{Binary: path})
	if o.Generation != 2 || o.Version != "2" || o.BuildID != "two" || o.Kind != OperationUpgrade || o.Ended == nil {
		t.Errorf("operation %+v", o)
	}
	st := r.waitFor("current", func(st *Status) bool { return r.current(st) == 2 })
	if c := st.Counters; c.UpgradesOK != 1 || c.UpgradesFailed != 0 || c.ReloadsOK != 0 || c.Rollbacks != 0 {
		t.Errorf("counters %+v", c)
	}
	for _, f := range r.alive(2) {
		if f.command.path != path || f.command.name != path {
			t.Errorf("worker runs %+v", f.command)
		}
	}
	for _, f := range r.alive(1) {
		if f.command.path == path {
			t.Error("an old worker runs the new program")
		}
	}
	c := r.checks[0]
	if c.command.path != path || !slices.Equal(c.command.args, r.opt.Verify) || c.command.memory == 0 || c.command.orphaned == 0 {
		t.Errorf("verified by %+v", c.command)
	}
	if slices.ContainsFunc(c.command.env, func(e string) bool { return strings.HasPrefix(e, lifeline.Env+"=") }) {
		t.Error("a program that verifies has a lifeline")
	}
	if c.abi != nil {
		t.Errorf("segment: %v", c.abi)
	}
	if _, err := decodeDocument(c.state); err != nil {
		t.Errorf("state: %v", err)
	}
	if strings.Contains(string(c.state), "e30=") { // the payload, "{}"
		t.Error("the state holds a payload")
	}
	// A reload stays with the program that serves, wherever it lies.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	r.mustReload()
	for _, f := range r.alive(3) {
		if !strings.HasPrefix(f.command.path, "/proc/self/fd/") || f.command.name != path {
			t.Errorf("worker runs %+v", f.command)
		}
	}
}

func TestUpgradeLooksAtTheFileEachTime(t *testing.T) { // C029, C030
	r := newRunning(t, withPrograms)
	dir := t.TempDir()
	one, two := program(t, dir, "one"), program(t, dir, "two")
	link := filepath.Join(dir, "link")
	if err := os.Symlink("one", link); err != nil {
		t.Fatal(err)
	}
	if err := r.s.call(t.Context(), func(s *Supervisor) { s.program = link }); err != nil {
		t.Fatal(err)
	}
	same := func(path string) bool {
		ok := false
		_ = r.s.call(t.Context(), func(s *Supervisor) { ok = sameAsFile(path, s.current.image.file) && s.self.same(s.current.image) })
		return ok
	}
	for _, tc := range []struct {
		name string
		do   func() error
		is   string
	}{
		{"symbolic link", func() error { return nil }, one},
		{"link that leads elsewhere", func() error { return errors.Join(os.Remove(link), os.Symlink("two", link)) }, two},
		{"renamed over", func() error { return os.Rename(program(t, dir, "three"), two) }, two},
		{"removed and copied", func() error {
			program(t, dir, "x")
			return errors.Join(os.Remove(two), os.Rename(filepath.Join(dir, "x"), two))
		}, two},
		{"the same file once more", func() error { return nil }, two},
	} {
		if err := tc.do(); err != nil {
			t.Fatal(err)
		}
		if r.mustUpgrade(UpgradeRequest{}); !same(tc.is) {
			t.Errorf("%s: another program runs", tc.name)
		}
	}
	if err := os.Remove(two); err != nil {
		t.Fatal(err)
	}
	o := r.result(r.ask(UpgradeRequest{}))
	if o.State != OperationFailed || !strings.Contains(o.Reason, "no program lies at "+link) {
		t.Errorf("removed: %+v", o)
	}
	r.mustReload() // HUP still works
}

// Each way to fail leaves the serving generation as it was, and the next good
// upgrade works.
func TestFailedUpgrade(t *testing.T) { // C028, C036, C040, C045
	dir := t.TempDir()
	good := program(t, dir, "good")
	write := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	foreign, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	const machineAt = 18
	other := elf.EM_AARCH64
	if elf.Machine(binary.NativeEndian.Uint16(foreign[machineAt:])) == other {
		other = elf.EM_X86_64
	}
	binary.NativeEndian.PutUint16(foreign[machineAt:], uint16(other))
	refuse := func(status int, text string) func(*rig) {
		return func(r *rig) { r.checker = func(c *fakeCheck) { c.refuse(status, text) } }
	}
	answer := func(change func(v *verdict)) func(*rig) {
		return func(r *rig) { r.checker = func(c *fakeCheck) { c.accept(change) } }
	}
	for _, tc := range []struct {
		name   string
		path   string
		break_ func(r *rig)
		reason string
		code   string
	}{
		{"nothing there", filepath.Join(dir, "none"), nil, "no program lies at", CodeFailed},
		{"directory", dir, nil, "is a directory", CodeFailed},
		{"not executable", write("plain", "\x7fELF", 0o644), nil, "chmod +x", CodeFailed},
		{"script", write("script", "#!/bin/sh\n", 0o755), nil, "is a script", CodeFailed},
		{"empty", write("empty", "", 0o755), nil, "is not a program for linux", CodeFailed},
		{"other machine", write("foreign", string(foreign), 0o755), nil, "for another machine", CodeFailed},
		{"exits at once", good, refuse(1, ""), "exit status 1 and no word", CodeFailed},
		{"refuses", good, refuse(1, "holdfast: version 2: it is not the day\n"), "from version test: version 2: it is not the day (exit status 1)", CodeFailed},
		{"says a lot", good, refuse(2, strings.Repeat("a", 1<<20)), "aaa …", CodeFailed},
		{"bad configuration", good, refuse(3, "a.yaml:1:2: wrong\na.yaml:3:4: as well\n"), "a.yaml:1:2: wrong; a.yaml:3:4: as well", CodeInvalidConfig},
		{"no verdict", good, func(r *rig) { r.checker = func(c *fakeCheck) { c.exit(exit{known: true}) } }, "without a verdict", CodeFailed},
		{"hangs", good, func(r *rig) { r.checker = func(*fakeCheck) {} }, "has not verified within", CodeFailed},
		{"other ABI", good, answer(func(v *verdict) { v.ABIMajor = 77 }), "version 2 has 77.", CodeFailed},
		{"other state", good, answer(func(v *verdict) { v.StateOldest, v.StateNewest = 8, 9 }), "version 2 reads state of versions 8 to 9, the running version test", CodeFailed},
		{"needs a restart", good, answer(func(v *verdict) { v.Spec.Geometry.TableEntries *= 2; v.Spec.ConfigHash = "sha256:2" }), "takes effect by a restart", CodeInvalidConfig},
		{"invalid configuration", good, answer(func(v *verdict) { v.Spec.Listeners = nil }), "no listeners", CodeInvalidConfig},
		{"worker ends", good, func(r *rig) {
			r.script.onStart = func(f *fakeWorker) bool { f.exit(exit{status: 3, known: true}); return false }
		}, "of 2: exit status 3", CodeFailed},
		{"never ready", good, func(r *rig) {
			r.script.onWelcome = func(*fakeWorker) bool { return false }
			r.spec.ReadyTimeout = 50 * time.Millisecond
		}, "not ready within", CodeFailed},
		{"other lifeline", good, func(r *rig) {
			r.script.hello = func(h *lifeline.Hello) { h.ProtocolMin, h.ProtocolMax = 90, 91 }
		}, "no common protocol", CodeFailed},
		{"worker of another ABI", good, func(r *rig) {
			r.script.hello = func(h *lifeline.Hello) { h.ABIMajor = 77 }
		}, "ABI version", CodeFailed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRunning(t, func(r *rig) { withPrograms(r); r.verifyLimit = 200 * time.Millisecond; r.script.onDrain = stays })
			if tc.break_ != nil {
				r.with(func() { tc.break_(r) })
			}
			o := r.result(r.ask(UpgradeRequest{Binary: tc.path}))
			if o.State != OperationFailed || !strings.Contains(o.Reason, tc.reason) || strings.Contains(o.Reason, "\n") || o.Code != tc.code {
				t.Errorf("operation %+v", o)
			}
			st := r.waitFor("failed generation gone", func(st *Status) bool { return len(st.Generations) == 1 })
			if c := st.Counters; r.current(st) != 1 || c.UpgradesFailed != 1 || c.UpgradesOK != 0 {
				t.Errorf("status %+v", st)
			}
			if l := st.LastFailure; l == nil || l.What != OperationUpgrade || l.Reason != o.Reason {
				t.Errorf("last failure %+v", l)
			}
			for i, f := range r.alive(1) {
				if f.udp(0)[0] != i || len(f.drains) != 0 {
					t.Errorf("worker %d has noticed", i)
				}
			}
			r.with(func() {
				r.checker, r.script.onStart, r.script.onWelcome, r.script.hello, r.spec.ReadyTimeout = nil, nil, nil, nil, 0
			})
			r.mustUpgrade(UpgradeRequest{Binary: good})
		})
	}
}

// A new program that does not become the supervisor takes its workers with it.
func TestExecFails(t *testing.T) { // C036, C041
	r := newRunning(t, func(r *rig) { withPrograms(r); r.script.onDrain = stays })
	path := program(t, t.TempDir(), "next")
	r.with(func() { r.execute = func(*image) error { return errors.New("text file busy") } })
	o := r.result(r.ask(UpgradeRequest{Binary: path}))
	if o.State != OperationFailed || !strings.Contains(o.Reason, "text file busy") {
		t.Errorf("operation %+v", o)
	}
	st := r.waitFor("rolled back", func(st *Status) bool { return st.Counters.Rollbacks == 1 })
	if c := st.Counters; c.UpgradesFailed != 1 || c.UpgradesOK != 0 || r.current(st) != 1 {
		t.Errorf("status %+v", st)
	}
	if back := r.alive(1); len(back) != 2 || back[0].command.path == path {
		t.Errorf("%d workers serve again", len(back))
	}
	last := st.Operations[len(st.Operations)-1]
	if last.Kind != OperationRollback || last.State != OperationDone || !strings.Contains(last.Because, "text file busy") {
		t.Errorf("last operation %+v", last)
	}
	r.with(func() { r.execute = nil })
	r.mustUpgrade(UpgradeRequest{Binary: path})
}

func TestProbation(t *testing.T) { // C042
	for _, tc := range []struct {
		name  string
		ends  bool // the generation before has ended
		later bool // the crash comes after the operation
	}{{"old generation lives", false, true}, {"old generation has ended", true, true}, {"at once", true, false}} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRunning(t, func(r *rig) {
				withPrograms(r)
				r.spec.Probation = time.Hour
				if !tc.ends {
					r.script.onDrain = stays
				}
			})
			path := program(t, t.TempDir(), "next")
			id := r.ask(UpgradeRequest{Binary: path})
			if tc.later {
				r.result(id)
			} else {
				r.waitFor("settling", func(st *Status) bool { return r.current(st) == 2 && st.Operations[0].Stage == StageSettling })
			}
			want := shm.Generation(1) // the same again
			if tc.ends {
				want = 3 // another one like it
				r.waitFor("the first has ended", func(*Status) bool { return len(r.alive(1)) == 0 })
			}
			r.alive(2)[0].exit(exit{status: 2, known: true})
			start := time.Now()
			st := r.waitFor("rolled back", func(st *Status) bool { return st.Counters.Rollbacks == 1 && r.current(st) == want })
			if d := time.Since(start); d > 2*time.Second {
				t.Errorf("rolled back after %v", d)
			}
			o := r.result(id)
			if o.State != OperationFailed || !strings.Contains(o.Reason, "exit status 2") {
				t.Errorf("operation %+v", o)
			}
			if l := st.LastFailure; l == nil || l.What != OperationUpgrade || l.Reason != o.Reason {
				t.Errorf("last failure %+v", l)
			}
			if got := r.alive(uint32(want))[0].command.path; got == path || st.Counters.UpgradesFailed != 1 {
				t.Errorf("now runs %q; %+v", got, st.Counters)
			}
			var same bool
			_ = r.s.call(t.Context(), func(s *Supervisor) { same = s.self.same(s.current.self) && s.probation == nil })
			if !same {
				t.Error("the supervisor runs another program than the current generation")
			}
		})
	}
}

// A start that fails after a program was replaced says what used to serve.
func TestLastGoodVersionIsNamed(t *testing.T) { // C040
	r := newRunning(t, func(r *rig) { r.opt.BuildID = "b" })
	state := r.opt.StateDir
	r.s.post(stopEvent{stopFast})
	if err := r.wait(); err != nil {
		t.Fatal(err)
	}
	for build, named := range map[string]bool{"b": false, "c": true} {
		next := newRig(t, func(n *rig) {
			n.opt.StateDir, n.opt.BuildID, n.spec.StartTries = state, build, 1
			n.script.onWelcome = func(f *fakeWorker) bool { f.exit(exit{status: 1, known: true}); return false }
		})
		next.run()
		err := next.wait()
		if err == nil || strings.Contains(err.Error(), "the last version that served here was v (build b, ") != named {
			t.Errorf("build %s: %v", build, err)
		}
	}
}

func TestProbationIsOver(t *testing.T) {
	r := newRunning(t, func(r *rig) { withPrograms(r); r.spec.Probation = 50 * time.Millisecond })
	r.mustUpgrade(UpgradeRequest{Binary: program(t, t.TempDir(), "next")})
	over := func(*Status) (ok bool) {
		_ = r.s.call(t.Context(), func(s *Supervisor) { ok = s.probation == nil })
		return ok
	}
	r.waitFor("probation over", over)
	r.alive(2)[0].exit(exit{status: 2, known: true})
	st := r.waitFor("replaced", func(st *Status) bool {
		return len(st.Generations[0].Workers) == 2 && st.Generations[0].Missing == 0 && st.Counters.WorkerCrashes == 1
	})
	if r.current(st) != 2 || st.Counters.Rollbacks != 0 {
		t.Errorf("status %+v", st)
	}
}

// A worker is replaced by the program of its own generation.
func TestReplacementRunsTheSameProgram(t *testing.T) { // C031
	r := newRunning(t, withPrograms)
	dir := t.TempDir()
	path := program(t, dir, "program")
	r.mustUpgrade(UpgradeRequest{Binary: path})
	if err := os.Rename(program(t, dir, "next"), path); err != nil { // installed, not upgraded to
		t.Fatal(err)
	}
	r.alive(2)[0].exit(exit{status: 2, known: true})
	r.waitFor("replaced", func(st *Status) bool { return len(r.alive(2)) == 2 && st.Generations[0].Missing == 0 })
	for _, f := range r.alive(2) {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if f.command.path == path {
			if f == r.alive(2)[1] {
				t.Errorf("the replacement runs what lies on disk now: %v", info)
			}
			continue
		}
		if !strings.HasPrefix(f.command.path, "/proc/self/fd/") {
			t.Errorf("runs %q", f.command.path)
		}
	}
}

func TestSignalsMerge(t *testing.T) { // C032, C033
	release := make(chan struct{})
	r := newRunning(t, func(r *rig) {
		withPrograms(r)
		r.checker = func(c *fakeCheck) { <-release; c.accept(nil) }
	})
	path := program(t, t.TempDir(), "program")
	_ = r.s.call(t.Context(), func(s *Supervisor) { s.program = path })
	for range 20 {
		r.s.post(signalEvent{sig: syscall.SIGUSR2})
	}
	st := r.waitFor("both known", func(st *Status) bool { return len(st.Operations) == 2 && st.Operations[1].Merged == 18 })
	if st.Operations[0].Stage != StageVerifying || st.Operations[1].State != OperationWaiting {
		t.Errorf("operations %+v", st.Operations)
	}
	third := r.ask(UpgradeRequest{Binary: program(t, t.TempDir(), "other")}) // another one waits its turn
	close(release)
	if o := r.result(third); o.State != OperationDone || o.Generation != 3 {
		t.Errorf("third: %+v", o)
	}
	st = r.waitFor("done", func(st *Status) bool { return r.current(st) == 3 })
	if c := st.Counters; c.UpgradesOK != 2 || c.UpgradesMerged != 19 || c.UpgradesFailed != 0 {
		t.Errorf("counters %+v", c)
	}
	if o := st.Operations[1]; o.State != OperationDone || o.Generation != 2 {
		t.Errorf("second: %+v", o)
	}
}

func TestUpgradeRequests(t *testing.T) {
	r := newRunning(t, withPrograms)
	for _, tc := range []struct {
		in   any
		part string
	}{
		{UpgradeRequest{Binary: "relative"}, "absolute path"},
		{UpgradeRequest{Canary: 100}, "percentage"},
		{UpgradeRequest{Canary: -1}, "percentage"},
		{UpgradeRequest{Soak: -1}, "negative"},
		{UpgradeRequest{Auto: true}, "canary"},
		{map[string]any{"binray": "/x"}, "unknown field"},
	} {
		code, body := r.call(http.MethodPost, "/v1/upgrade", tc.in)
		if code != http.StatusBadRequest || !strings.Contains(string(body), tc.part) {
			t.Errorf("%+v: %d %s", tc.in, code, body)
		}
	}
	if code, _ := r.call(http.MethodGet, "/v1/operations/99", nil); code != http.StatusNotFound {
		t.Errorf("unknown operation: %d", code)
	}
	for _, path := range []string{"/v1/operations/x", "/v1/operations/1?wait=x"} {
		if code, _ := r.call(http.MethodGet, path, nil); code != http.StatusBadRequest {
			t.Errorf("%s: %d", path, code)
		}
	}
}

func TestOperationsAreForgotten(t *testing.T) {
	s := newSupervisor(Options{Log: zap.NewNop()}, realEnv())
	running := s.newOperation(OperationUpgrade)
	for range maxOperations + 5 {
		s.end(s.newOperation(OperationReload), nil)
	}
	if n := len(s.operations); n != maxOperations+1 || s.findOperation(running.ID) != running || s.findOperation(2) != nil {
		t.Errorf("%d remembered", n)
	}
	list := s.operationList()
	other := newSupervisor(Options{Log: zap.NewNop()}, realEnv())
	waiting := Operation{ID: 90, Kind: OperationReload, State: OperationWaiting}
	lost := Operation{ID: 91, Kind: OperationRollback, State: OperationWaiting}
	list[0].State = OperationRunning
	if got := other.restoreOperations(append(list, waiting, lost), 89); got == nil || got.ID != running.ID {
		t.Errorf("running %+v", got)
	}
	if len(other.queue) != 1 || other.queue[0].ID != 90 || other.lastOperation != 91 || other.findOperation(91).State != OperationFailed {
		t.Errorf("queue %v, last %d", other.queue, other.lastOperation)
	}
}

func TestProbationSurvives(t *testing.T) {
	r := newRunning(t, func(r *rig) { withPrograms(r); r.spec.Probation = time.Hour; r.spec.Payload = []byte(`{"secret":1}`) })
	r.mustUpgrade(UpgradeRequest{Binary: program(t, t.TempDir(), "next")})
	err := r.s.call(t.Context(), func(s *Supervisor) {
		wire, err := s.snapshot().encode()
		if err != nil || strings.Contains(string(wire), "secret") || strings.Contains(string(wire), "eyJzZWNyZXQiOjF9") {
			t.Errorf("document: %v", err)
		}
		d, err := decodeDocument(wire)
		if err != nil || d.Probation == nil {
			t.Fatalf("document: %+v, %v", d, err)
		}
		files := s.descriptors()
		got, err := d.Probation.restore(files[nameBeforePayload], files[nameBeforeImage], files[nameBeforeSelf])
		if err != nil || got == nil {
			t.Fatalf("restored %+v, %v", got, err)
		}
		if p := s.probation; got.generation != 2 || got.before != 1 || string(got.spec.Payload) != `{"secret":1}` || !got.image.same(p.image) || !got.self.same(p.self) || !got.until.Equal(p.until) {
			t.Errorf("restored %+v", got)
		}
		if got, err := d.Probation.restore(nil, nil, nil); got != nil || err != nil {
			t.Errorf("without descriptors: %+v, %v", got, err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}
