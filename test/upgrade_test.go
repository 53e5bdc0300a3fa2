package test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/test/kit"
)

// installed runs an instance of version 1.0.0 from a path of its own, which is
// returned.
func installed(t *testing.T, o kit.Options) (*kit.Instance, string) {
	t.Helper()
	dir := t.TempDir()
	path := kit.Install(t, kit.Build(t, "1.0.0"), filepath.Join(dir, "holdfast"))
	if o.Program == "" {
		o.Program = path
	}
	if o.Config.Sections == nil {
		o.Config = o.Config.With("upgrade", "{probation: 5s}")
	}
	return kit.Start(t, o), path
}

// upgrade runs the command; it must succeed.
func upgrade(t *testing.T, in *kit.Instance, args ...string) {
	t.Helper()
	if r := in.CLI(append([]string{"upgrade"}, args...)...); r.Code != 0 {
		t.Fatalf("holdfast upgrade: exit code %d: %s\n%s", r.Code, r.Stderr, in.LogTail(20))
	}
}

// running fails the test unless supervisor and current workers are of that
// version and the process is still the same.
func running(t *testing.T, in *kit.Instance, version string, pid int) kit.Status {
	t.Helper()
	st := in.Status()
	if st.Version != version || st.PID != pid || in.PID() != pid {
		t.Errorf("supervisor: version %s, process %d; expected %s, %d", st.Version, st.PID, version, pid)
	}
	g, _ := st.Current()
	if g.Version != version {
		t.Errorf("current workers: version %s, expected %s", g.Version, version)
	}
	return st
}

// C027, C037: two different builds in turn, under load.
func TestUpgradesInARowLoseNothing(t *testing.T) {
	in, path := installed(t, kit.Options{})
	pid := in.PID()
	quic := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: kit.Scale(200, 1000)})
	tcp := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: kit.Scale(20, 100), TCP: "h2"})
	prober := kit.StartProber(t, in.Client(), 50*time.Millisecond)
	versions := []string{"2.0.0", "1.0.0"}
	fds := 0
	kit.Every(3*time.Second, kit.Scale(12*time.Second, 60*time.Second), func(i int) bool {
		version := versions[i%len(versions)]
		kit.Install(t, kit.Build(t, version), path)
		upgrade(t, in)
		running(t, in, version, pid)
		if i == 0 {
			fds = kit.Descriptors(pid)
		}
		return !t.Failed()
	})
	prober.Stop().MustBeClean(t)
	quic.Stop().MustBeClean(t)
	tcp.Stop().MustBeClean(t)
	st := awaitOnlyCurrent(t, in, 15*time.Second)
	if st.Counter("upgrades_failed") != 0 || st.Counter("rollbacks") != 0 || st.Counter("worker_crashes") != 0 {
		t.Errorf("counters %v", st.Counters)
	}
	if now := kit.Descriptors(pid); now > fds+2 {
		t.Errorf("supervisor has %d descriptors, %d after the first upgrade", now, fds)
	}
}

// C028, C036, C040: whatever is wrong with a new program, what serves goes on,
// and the next upgrade works.
func TestBadBuildsAreRefused(t *testing.T) {
	in, path := installed(t, kit.Options{Config: kit.Config{}.
		With("start", "{ready_timeout: 2s, probe_timeout: 1s}").With("upgrade", "{probation: 10s}"), AllowPanics: true})
	pid := in.PID()
	fleet := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 20, Interval: 200 * time.Millisecond})
	prober := kit.StartProber(t, in.Client(), 50*time.Millisecond)
	dir := t.TempDir()
	bad := func(name string) string { return kit.BadBuild(t, dir, name) }
	file := func(name, content string, mode os.FileMode) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		return p
	}
	foreign, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	foreign[18], foreign[19] = 0xf3, 0 // RISC-V
	for _, c := range []struct {
		name, path, reason string
		served             bool // it has been current for a moment
	}{
		{"nothing there", filepath.Join(dir, "none"), "no program lies at", false},
		{"directory", dir, "is a directory", false},
		{"not executable", file("plain", string(foreign), 0o600), "is not executable", false},
		{"script", file("script", "#!/bin/sh\nexit 0\n", 0o755), "is a script", false},
		{"other machine", file("foreign", string(foreign), 0o755), "for another machine", false},
		{"another program", "/bin/true", "without a verdict", false},
		{"exits at once", bad("exits"), "exit status 1", false},
		{"exits after 300 ms", bad("exits-soon"), "exit status 1", false},
		{"hangs", bad("hangs"), "has not verified within 10s", false},
		{"no verdict", bad("no-verdict"), "without a verdict", false},
		{"other ABI", bad("other-abi"), "ABI version: version 99.0.0 has 2.", false},
		{"other state", bad("other-state"), "version 99.0.0 reads state of versions 98 to 99, the running version 1.0.0", false},
		{"worker exits", bad("worker-exits"), "exit status 1", false},
		{"worker hangs", bad("worker-hangs"), "not ready within 2s", false},
		{"probe fails", bad("probe-fails"), "probe of listener", false},
		{"worker crashes again and again", bad("worker-crashes"), "exit status 2", true},
		{"supervisor exits", bad("supervisor-exits"), "exit status 1", false},
		{"supervisor panics", bad("supervisor-panics"), "as it is meant to", false},
		{"supervisor hangs", bad("supervisor-hangs"), "has not verified within 10s", false},
		{"fails after the exec", bad("successor-fails"), "ended with exit status 2", true},
		{"hangs after the exec", bad("successor-stalls"), "not healthy within 5s", true},
	} {
		before := in.Status()
		g, _ := before.Current()
		r := in.CLI("upgrade", "--binary", c.path)
		if r.Code != 1 || !strings.Contains(r.Stderr, c.reason) || strings.Count(r.Stderr, "\n") != 1 {
			t.Errorf("%s: exit code %d: %s", c.name, r.Code, r.Stderr)
		}
		st := in.AwaitStatus(20*time.Second, c.name+": the old program serves alone", func(s kit.Status) error {
			now, ok := s.Current()
			if !ok || now.Version != "1.0.0" || s.Version != "1.0.0" || s.PID != pid {
				return fmt.Errorf("version %s with workers of %s in process %d", s.Version, now.Version, s.PID)
			}
			for _, o := range s.Operations {
				if o.State == "running" || o.State == "waiting" {
					return fmt.Errorf("%s is %s", o.Kind, o.State)
				}
			}
			return nil
		})
		if now, _ := st.Current(); !c.served && (now.ID != g.ID || st.Counter("rollbacks") != before.Counter("rollbacks")) {
			t.Errorf("%s: generation %d serves, not %d", c.name, now.ID, g.ID)
		}
		if st.Counter("upgrades_failed") != before.Counter("upgrades_failed")+1 || st.LastFailure == nil || st.LastFailure.What != "upgrade" {
			t.Errorf("%s: status %+v", c.name, st)
		}
		if t.Failed() {
			t.Fatal(in.LogTail(30))
		}
	}
	kit.Install(t, kit.Build(t, "2.0.0"), path)
	upgrade(t, in)
	running(t, in, "2.0.0", pid)
	prober.Stop().MustBeClean(t)
	fleet.Stop().MustBeClean(t)
}

// C003 for upgrades: the program may be new, the configuration must be right.
func TestUpgradeWithBadConfiguration(t *testing.T) {
	in, path := installed(t, kit.Options{})
	kit.Install(t, kit.Build(t, "2.0.0"), path)
	in.WriteRaw("listeners: []\nworkers: none\n")
	r := in.CLI("upgrade")
	if r.Code != 3 || !containsAll(r.Stderr, "holdfast.yaml:1:", "holdfast.yaml:2:") {
		t.Errorf("exit code %d: %s", r.Code, r.Stderr)
	}
	in.WriteConfig(in.Config)
	upgrade(t, in)
	running(t, in, "2.0.0", in.PID())
}

// C029: however the program was started, an upgrade finds the one that lies
// there now.
func TestUpgradeFindsTheProgram(t *testing.T) {
	for _, c := range []struct {
		name    string
		options func(dir string) kit.Options
	}{
		{"relative path", func(dir string) kit.Options { return kit.Options{Program: "./holdfast", WorkDir: dir} }},
		{"path from a directory beside", func(dir string) kit.Options {
			return kit.Options{Program: "../bin/holdfast", WorkDir: filepath.Join(filepath.Dir(dir), "work")}
		}},
		{"looked up", func(dir string) kit.Options {
			t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
			return kit.Options{Program: "holdfast"}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			dir := filepath.Join(root, "bin")
			for _, d := range []string{dir, filepath.Join(root, "work")} {
				if err := os.Mkdir(d, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			path := kit.Install(t, kit.Build(t, "1.0.0"), filepath.Join(dir, "holdfast"))
			in := kit.Start(t, c.options(dir))
			kit.Install(t, kit.Build(t, "2.0.0"), path)
			upgrade(t, in)
			if st := running(t, in, "2.0.0", in.PID()); st.Program != path {
				t.Errorf("program %s, expected %s", st.Program, path)
			}
		})
	}
	t.Run("symbolic link", func(t *testing.T) {
		link := filepath.Join(t.TempDir(), "current")
		if err := os.Symlink(kit.Build(t, "1.0.0"), link); err != nil {
			t.Fatal(err)
		}
		in := kit.Start(t, kit.Options{Program: link})
		if err := errors.Join(os.Remove(link), os.Symlink(kit.Build(t, "2.0.0"), link)); err != nil {
			t.Fatal(err)
		}
		upgrade(t, in)
		running(t, in, "2.0.0", in.PID())
		upgrade(t, in, "--binary", kit.Build(t, "1.0.0"))
		running(t, in, "1.0.0", in.PID())
		upgrade(t, in) // to what lies where it was started from
		running(t, in, "2.0.0", in.PID())
	})
}

// C030: each way in which a program is replaced, and one that is gone.
func TestUpgradeAfterTheFileWasReplaced(t *testing.T) {
	in, path := installed(t, kit.Options{})
	kit.Install(t, kit.Build(t, "2.0.0"), path)
	upgrade(t, in)
	running(t, in, "2.0.0", in.PID())
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	r := in.CLI("upgrade")
	if r.Code != 1 || !strings.Contains(r.Stderr, "no program lies at "+path) {
		t.Errorf("exit code %d: %s", r.Code, r.Stderr)
	}
	before := in.Current()
	in.HUP()
	in.AwaitGeneration(before + 1)
	running(t, in, "2.0.0", in.PID())
	kit.Install(t, kit.Build(t, "1.0.0"), path)
	upgrade(t, in)
	running(t, in, "1.0.0", in.PID())
}

// C031: between installation and upgrade, a worker that crashed comes back as
// what its generation is.
func TestCrashedWorkerRunsTheProgramOfItsGeneration(t *testing.T) {
	in, path := installed(t, kit.Options{Config: kit.Config{Workers: 1}})
	kit.Install(t, kit.BadBuild(t, t.TempDir(), "worker-exits"), path)
	g, _ := in.Status().Current()
	if err := syscall.Kill(g.Workers[0].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	st := in.AwaitStatus(10*time.Second, "worker replaced", func(s kit.Status) error {
		now, _ := s.Current()
		if len(now.Workers) != 1 || now.Workers[0].PID == g.Workers[0].PID || now.Workers[0].Phase != "serving" {
			return fmt.Errorf("workers %+v", now.Workers)
		}
		return nil
	})
	now, _ := st.Current()
	if who := whoami(t, dial(t, in.Client())); who.PID != now.Workers[0].PID || who.Version != "1.0.0" {
		t.Errorf("answered by %+v", who)
	}
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", now.Workers[0].PID))
	if err != nil || strings.TrimSpace(string(comm)) != "holdfast" {
		t.Errorf("the worker is called %q, %v", comm, err)
	}
}

// C032: an upgrade while the one before still drains.
func TestUpgradeWhileTheLastOneDrains(t *testing.T) {
	in, _ := installed(t, kit.Options{})
	one := dial(t, in.Client())
	first := whoami(t, one)
	upgrade(t, in, "--binary", kit.Build(t, "2.0.0"))
	two := dial(t, in.Client())
	second := whoami(t, two)
	upgrade(t, in, "--binary", kit.Build(t, "3.0.0"))
	running(t, in, "3.0.0", in.PID())
	for _, c := range []struct {
		client *kit.Client
		was    kit.Whoami
	}{{one, first}, {two, second}} {
		if now := whoami(t, c.client); now.Incarnation != c.was.Incarnation {
			t.Errorf("now answered by %+v, first by %+v", now, c.was)
		}
	}
	if second.Version != "2.0.0" || whoami(t, dial(t, in.Client())).Version != "3.0.0" {
		t.Errorf("second answered by %+v", second)
	}
}

// C033: signals in a row make one upgrade.
func TestUpgradeSignalsMerge(t *testing.T) {
	in, path := installed(t, kit.Options{})
	for i, n := range []int{2, 20} {
		version := []string{"2.0.0", "1.0.0"}[i]
		kit.Install(t, kit.Build(t, version), path)
		before := in.Status()
		g, _ := before.Current()
		for range n {
			in.Signal(syscall.SIGUSR2)
			time.Sleep(time.Second / 40) // twenty in less than a second
		}
		st := in.AwaitStatus(20*time.Second, "upgrades done", func(s kit.Status) error {
			for _, o := range s.Operations {
				if o.State == "running" || o.State == "waiting" {
					return fmt.Errorf("%s is %s", o.Kind, o.State)
				}
			}
			if s.Version != version {
				return fmt.Errorf("version %s", s.Version)
			}
			return nil
		})
		running(t, in, version, in.PID())
		now, _ := st.Current()
		if st.Counter("upgrades_ok") != before.Counter("upgrades_ok")+1 || now.ID != g.ID+1 {
			t.Errorf("%d signals: generation %d after %d, counters %v", n, now.ID, g.ID, st.Counters)
		}
		if st.Counter("upgrades_merged") == before.Counter("upgrades_merged") {
			t.Errorf("%d signals: none merged: %v", n, st.Counters)
		}
	}
}

// C038: requests on new connections do not wait for those that are under way.
func TestUpgradeHoldsNobodyUp(t *testing.T) {
	plain := kit.StartPlain(t)
	in, path := installed(t, kit.Options{})
	in.WriteFile("big", 8<<20)
	o := in.Client()
	o.StreamWindow = 32 << 10
	slow := kit.StartDownload(t, dial(t, o), "/files/big", 256<<10)
	slow.AwaitBytes(t, 64<<10, 10*time.Second)
	quic := kit.StartProber(t, in.Client(), 50*time.Millisecond)
	tcp := kit.StartTCPProber(t, in.Client(), "h2", 50*time.Millisecond)
	control := kit.StartProber(t, kit.ClientOptions{Server: plain}, 50*time.Millisecond)
	for _, version := range []string{"2.0.0", "1.0.0", "2.0.0"} {
		kit.Install(t, kit.Build(t, version), path)
		upgrade(t, in)
	}
	c := control.Stop()
	c.MustBeClean(t)
	// Twice as long as others wait on this machine at the same time is not late.
	limit := max(kit.Scale(250*time.Millisecond, 100*time.Millisecond), 2*c.Longest())
	for name, p := range map[string]*kit.Prober{"QUIC": quic, "TCP": tcp} {
		h := p.Stop()
		h.MustBeClean(t)
		late := 0
		for _, d := range h.Times {
			if d > limit {
				late++
			}
		}
		if late*100 > len(h.Times)+99 {
			t.Errorf("%s: %d of %d new connections waited", name, late, len(h.Times))
		}
	}
}

// C048: the admin socket answers all the time, over an upgrade and a failed one.
func TestAdminSocketAnswersOverUpgrades(t *testing.T) {
	in, path := installed(t, kit.Options{})
	stop, result := make(chan struct{}), make(chan error, 1)
	go func() {
		last := time.Now()
		for {
			select {
			case <-stop:
				result <- nil
				return
			default:
			}
			_, err := in.Admin(http.MethodGet, "/v1/status", time.Second)
			if now := time.Now(); err == nil {
				last = now
			} else if gap := now.Sub(last); gap > kit.Scale(500*time.Millisecond, 200*time.Millisecond) {
				result <- fmt.Errorf("no answer for %v: %w", gap, err)
				return
			}
			time.Sleep(5 * time.Millisecond) // the rate of the questions
		}
	}()
	kit.Install(t, kit.Build(t, "2.0.0"), path)
	upgrade(t, in)
	if r := in.CLI("upgrade", "--binary", "/bin/true"); r.Code != 1 {
		t.Errorf("exit code %d: %s", r.Code, r.Stderr)
	}
	close(stop)
	if err := <-result; err != nil {
		t.Error(err)
	}
	running(t, in, "2.0.0", in.PID())
}
