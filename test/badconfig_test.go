package test

import (
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/test/kit"
)

// unharmed runs a reload that must fail and verifies that the serving
// generation does not notice: no request fails, the same processes serve, the
// command says why in one line with the given words, and a good reload works
// afterwards.
func unharmed(t *testing.T, in *kit.Instance, code int, words []string, spoil, mend func()) {
	t.Helper()
	f := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 10, Interval: 100 * time.Millisecond})
	prober := kit.StartProber(t, in.Client(), 50*time.Millisecond)
	before := in.Status()
	g, _ := before.Current()

	spoil()
	r := in.CLI("reload")
	t.Logf("exit code %d: %s", r.Code, strings.TrimSpace(r.Stderr))
	if r.Code != code {
		t.Errorf("exit code %d, want %d", r.Code, code)
	}
	if !containsAll(r.Stderr, words...) {
		t.Errorf("reason %q lacks one of %q", r.Stderr, words)
	}
	if n := strings.Count(strings.TrimSpace(r.Stderr), "\n") + 1; n > 1 && code != 3 {
		t.Errorf("reason has %d lines: %q", n, r.Stderr)
	}
	after := in.Status()
	now, _ := after.Current()
	if now.ID != g.ID || after.Config.Hash != before.Config.Hash {
		t.Errorf("generation %d with %s is current, was %d with %s", now.ID, after.Config.Hash, g.ID, before.Config.Hash)
	}
	for i, w := range now.Workers {
		if w.PID != g.Workers[i].PID {
			t.Errorf("worker %d replaced by %d", g.Workers[i].PID, w.PID)
		}
	}
	if after.LastFailure == nil || after.LastFailure.Reason == "" {
		t.Error("status does not show the failure")
	}
	if n := after.Counter("reloads_failed"); n != before.Counter("reloads_failed")+1 {
		t.Errorf("%d failed reloads counted after %d", n, before.Counter("reloads_failed"))
	}

	mend()
	in.Reload()
	if id := in.Current(); id <= g.ID {
		t.Errorf("generation %d is current after the good reload", id)
	}
	prober.Stop().MustBeClean(t)
	f.Stop().MustBeClean(t)
}

// quickStart lets a start that cannot succeed fail soon.
func quickStart(c kit.Config) kit.Config {
	return c.With("start", "{ready_timeout: 1s, probe_timeout: 1s, tries: 2}")
}

// C019: whatever is wrong with a reload, the command says it, exits with
// the right code, and nobody notices.
func TestFailedReloadLeavesTheServingGenerationAlone(t *testing.T) {
	in := start(t, 2)
	good := func() { in.Misbehave("", 0); in.WriteConfig(in.Config.WithBody("good")) }
	bad := func(how string) func() {
		return func() { in.Misbehave(how, 0); in.WriteConfig(quickStart(in.Config)) }
	}
	t.Run("syntax error", func(t *testing.T) {
		unharmed(t, in, 3, []string{"holdfast.yaml:"}, func() { in.WriteRaw("listeners:\n  - name: [\n") }, good)
	})
	t.Run("unknown key", func(t *testing.T) {
		unharmed(t, in, 3, []string{"holdfast.yaml:", "bogus"}, func() { in.WriteConfig(in.Config.With("bogus", "1")) }, good)
	})
	t.Run("missing certificate", func(t *testing.T) {
		c := in.Config
		l := c.Listeners[0]
		l.TLS = "{certificates: [{cert: nowhere.pem, key: nowhere.key}]}"
		c.Listeners = []kit.Listener{l}
		unharmed(t, in, 3, []string{"nowhere.pem"}, func() { in.WriteConfig(c) }, good)
	})
	t.Run("worker exits at once", func(t *testing.T) {
		unharmed(t, in, 1, []string{"worker"}, bad(kit.WorkerExits), good)
	})
	t.Run("worker exits after 200 ms", func(t *testing.T) {
		unharmed(t, in, 1, []string{"worker"}, bad(kit.WorkerExitsAfter(200*time.Millisecond)), good)
	})
	t.Run("worker hangs", func(t *testing.T) {
		unharmed(t, in, 1, []string{"ready"}, bad(kit.WorkerHangs), good)
	})
	t.Run("worker is never ready", func(t *testing.T) {
		unharmed(t, in, 1, []string{"ready"}, bad(kit.WorkerMute), good)
	})
	if now := awaitOnlyCurrent(t, in, 10*time.Second); len(now.In("current")) != 1 {
		t.Errorf("generations %+v", now.Generations)
	}
}

// C012: a reload that failed because a port was taken succeeds once it is free.
func TestReloadSucceedsOnceThePortIsFree(t *testing.T) {
	in := start(t, 2)
	taken := kit.FreePort(t, "127.0.0.1")
	address := fmt.Sprintf("127.0.0.1:%d", taken)
	c := in.Config.WithListener(kit.Listener{Name: "second", Address: address})
	for _, network := range []string{"udp", "tcp"} {
		t.Run(network, func(t *testing.T) {
			free := occupy(t, network, address)
			unharmed(t, in, 1, []string{address}, func() { in.WriteConfig(c) }, free)
			client := dial(t, kit.ClientOptions{Server: address})
			whoami(t, client)
			client.Close() // its generation would keep the port for it
			in.WriteConfig(in.Config)
			in.Reload()
			kit.Eventually(t, 5*time.Second, "port given back", func() error {
				udp, tcp := kit.BoundSockets(taken)
				if len(udp)+len(tcp) > 0 {
					return fmt.Errorf("udp %v, tcp %v", udp, tcp)
				}
				return nil
			})
		})
	}
}

// occupy binds an address and returns how to free it.
func occupy(t *testing.T, network, address string) (free func()) {
	t.Helper()
	if network == "tcp" {
		l, err := net.Listen(network, address)
		if err != nil {
			t.Fatal(err)
		}
		return func() { l.Close() }
	}
	pc, err := net.ListenPacket(network, address)
	if err != nil {
		t.Fatal(err)
	}
	return func() { pc.Close() }
}

// C053: a first start that cannot succeed ends after the stated tries, with a
// reason and an exit code.
func TestFirstStartGivesUp(t *testing.T) {
	for _, how := range []string{kit.WorkerExits, kit.WorkerHangs, kit.WorkerMute} {
		t.Run(how, func(t *testing.T) {
			in := kit.Prepare(t, kit.Options{Config: quickStart(kit.Config{})})
			in.Misbehave(how, 0)
			in.Launch()
			if code := in.AwaitExit(15 * time.Second); code != 1 { // not 5: nobody set a limit to the start
				t.Errorf("exit code %d", code)
			}
			if log := in.Log(); !containsAll(log, "worker") {
				t.Errorf("no reason in the log: %s", log)
			}
		})
	}
}

// A configuration that is wrong from the start is refused with code 3, and
// nothing is created.
func TestFirstStartRefusesABrokenConfiguration(t *testing.T) {
	in := kit.Prepare(t, kit.Options{Raw: "listeners:\n  - {name: a, address: 127.0.0.1:1, wrong: 1}\n"})
	r := in.CLI("check", "--config", in.ConfigPath)
	if r.Code != 3 || !containsAll(r.Stderr+r.Stdout, "holdfast.yaml:2:", "wrong") {
		t.Errorf("check: exit code %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
	in.Launch()
	if code := in.AwaitExit(5 * time.Second); code != 3 {
		t.Errorf("run: exit code %d: %s", code, in.LogTail(5))
	}
}

// C053: a worker that crashes again and again after a good start is started
// with growing pauses, one log line a try, while its siblings serve.
func TestCrashLoopBacksOff(t *testing.T) {
	in := start(t, 2)
	f := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 20, Interval: 100 * time.Millisecond, Reconnect: true})
	in.Misbehave(kit.WorkerCrashesAfter(100*time.Millisecond), 0)
	victim := in.WorkerPIDs()[0]
	if err := kit.Signal(victim, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	window := kit.Scale(5*time.Second, 30*time.Second)
	kit.Every(window, window, func(int) bool { return true })
	crashes := in.Status().Counter("worker_crashes")
	t.Logf("%d crashes in %v", crashes, window)
	// Without pauses there would be one each 150 ms or so.
	if crashes < 2 || crashes > uint64(window/(300*time.Millisecond)) {
		t.Errorf("%d crashes in %v", crashes, window)
	}
	in.Misbehave("", 0)
	in.AwaitStatus(30*time.Second, "both workers serve again", func(s kit.Status) error {
		g, _ := s.Current()
		for _, w := range g.Workers {
			if w.Phase != "serving" {
				return fmt.Errorf("slot %d is %s", w.Slot, w.Phase)
			}
		}
		if len(g.Workers) != 2 {
			return fmt.Errorf("%d workers", len(g.Workers))
		}
		return nil
	})
	f.Stop()
}
