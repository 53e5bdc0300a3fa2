package test

import (
	"fmt"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/test/kit"
)

// C004: a draining generation has a finite limit by default, is gone by a
// configured one, and its gauge counts the connections that live.
func TestDrainingGenerationEndsAtItsLimit(t *testing.T) {
	in := startWith(t, kit.Config{}.With("drain", "{timeout: 3s, stop_timeout: 1s}"))
	var fleets []*kit.Fleet
	const each = 4
	for i := range 3 {
		fleets = append(fleets, kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: each, Interval: 100 * time.Millisecond}))
		kit.Eventually(t, 5*time.Second, "gauges equal the live connections", func() error {
			quic := 0
			for _, g := range in.Status().Generations {
				n, _ := g.Connections()
				quic += n
			}
			if quic != (i+1)*each {
				return fmt.Errorf("gauges say %d of %d", quic, (i+1)*each)
			}
			return nil
		})
		in.Reload()
	}
	for _, g := range draining(in.Status()) {
		if g.Deadline == nil {
			t.Errorf("generation %d drains without a deadline", g.ID)
		}
	}
	awaitOnlyCurrent(t, in, 7*time.Second)
	for _, f := range fleets {
		r := f.Stop()
		for _, l := range r.Lost {
			if !orderly(l.Cause) {
				t.Errorf("connection ended by %s", l.Cause)
			}
		}
	}
}

// C004, C015: the default limit is finite and long enough for real sessions,
// and each listener may have its own.
func TestListenersHaveTheirOwnDrainLimit(t *testing.T) {
	other := kit.FreePort(t, "127.0.0.1")
	port := kit.FreePort(t, "127.0.0.1")
	in := startWith(t, kit.Config{Listeners: []kit.Listener{
		{Name: "long", Address: fmt.Sprintf("127.0.0.1:%d", port), Extra: "drain_timeout: 12h"},
		{Name: "short", Address: fmt.Sprintf("127.0.0.1:%d", other), Extra: "drain_timeout: 1s"},
	}}.With("drain", "{stop_timeout: 1s}"))
	long := dial(t, in.Client())
	owner := whoami(t, long)
	short := dial(t, kit.ClientOptions{Server: fmt.Sprintf("127.0.0.1:%d", other), KeepAlive: time.Second})
	whoami(t, short)
	in.Reload()
	if cause := awaitLost(t, short, 5*time.Second); !orderly(cause) {
		t.Errorf("connection with the short limit ended by %s", cause)
	}
	if now := whoami(t, long); now.Incarnation != owner.Incarnation {
		t.Errorf("connection with the long limit moved to %+v", now)
	}
	g, ok := in.Status().Generation(owner.Generation)
	if !ok || g.Deadline == nil || time.Until(*g.Deadline) < 11*time.Hour {
		t.Errorf("limit in force of generation %d: %v", owner.Generation, g.Deadline)
	}
}

// C015: without a word in the configuration sessions get at least 4 minutes.
func TestDefaultDrainLimitIsLong(t *testing.T) {
	in := start(t, 1)
	c := dial(t, in.Client())
	owner := whoami(t, c)
	in.Reload()
	g, ok := in.Status().Generation(owner.Generation)
	if !ok || g.Deadline == nil || time.Until(*g.Deadline) < 4*time.Minute {
		t.Errorf("default limit of generation %d: %v", owner.Generation, g.Deadline)
	}
}

// C009: however many reloads, only so many generations drain; the oldest is
// ended first and in order, and memory stays bounded.
func TestOldestGenerationIsEvicted(t *testing.T) {
	const limit = 4
	in := startWith(t, kit.Config{Workers: 1}.
		With("drain", fmt.Sprintf("{max_generations: %d, overflow: evict, timeout: 1h, stop_timeout: 1s}", limit)))
	var fleets []*kit.Fleet
	memory := func() (total int64) {
		for _, pid := range in.Processes() {
			total += kit.Memory(pid, "RssAnon")
		}
		return total
	}
	var early int64
	reloads := kit.Scale(12, 50)
	for i := range reloads {
		fleets = append(fleets,
			kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 1, Interval: 200 * time.Millisecond}),
			kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 1, TCP: "h2", Interval: 200 * time.Millisecond}))
		reload(t, in)
		in.AwaitStatus(5*time.Second, "generations within the limit", func(s kit.Status) error {
			if n := len(draining(s)); n > limit {
				return fmt.Errorf("%d generations drain", n)
			}
			return nil
		})
		if i == limit+1 {
			early = memory()
		}
	}
	if late := memory(); late > early*5/4 {
		t.Errorf("all processes use %d KiB, %d after the first %d reloads", late>>10, early>>10, limit+2)
	}
	for i, f := range fleets {
		r := f.Stop()
		evicted := i/2 < reloads-limit
		if lost := len(r.Lost) > 0; lost != evicted {
			t.Errorf("client of generation %d: lost %v, want %v (%v)", i/2+1, lost, evicted, r)
		}
		for _, l := range r.Lost {
			if i%2 == 0 && !orderly(l.Cause) {
				t.Errorf("QUIC client of generation %d ended by %s", i/2+1, l.Cause)
			}
		}
	}
}

// C010: nobody outlives the hard limit, and nobody is left to a time-out.
func TestDrainLimitIsHard(t *testing.T) {
	in := startWith(t, kit.Config{}.With("drain", "{timeout: 2s, stop_timeout: 1s}"))
	in.WriteFile("big", 8<<20)
	pinging := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 5, Interval: 100 * time.Millisecond})
	h2 := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 5, TCP: "h2", Interval: 100 * time.Millisecond})
	h1 := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 5, TCP: "http/1.1", Interval: 100 * time.Millisecond})
	o := in.Client()
	o.StreamWindow = 16 << 10
	stuck := dial(t, o)
	kit.StartDownload(t, stuck, "/files/big", 1) // a peer that hardly reads
	mute := dial(t, in.Client())                 // a peer that is silent
	whoami(t, mute)
	in.Reload()
	begin := time.Now()
	awaitOnlyCurrent(t, in, 5*time.Second)
	t.Logf("old generation gone after %v", time.Since(begin).Round(time.Millisecond))
	for _, c := range []*kit.Client{stuck, mute} {
		if cause := awaitLost(t, c, time.Second); !orderly(cause) {
			t.Errorf("connection ended by %s", cause)
		}
	}
	for _, f := range []*kit.Fleet{pinging, h1, h2} {
		r := f.Stop()
		if len(r.Lost) != r.Clients {
			t.Errorf("%d of %d connections ended: %v", len(r.Lost), r.Clients, r)
		}
		for _, l := range r.Lost {
			if l.Cause == kit.CauseIdle || l.Cause == kit.CauseReset || l.Cause == kit.CauseTCPReset {
				t.Errorf("connection ended by %s", l.Cause)
			}
		}
	}
}

// C014: a draining generation costs no CPU, and one without connections ends.
func TestIdleDrainingGenerationCostsNothing(t *testing.T) {
	in := start(t, 1)
	idle := in.Client()
	idle.KeepAlive = time.Second
	quic := kit.StartFleet(t, kit.FleetOptions{Client: idle, N: 20, Interval: time.Hour})
	tcp := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 20, TCP: "http/1.1", Interval: time.Hour})
	old := in.WorkerPIDs()
	in.Reload()
	busy := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 20, Interval: 50 * time.Millisecond})
	span := kit.Scale(5*time.Second, 60*time.Second)
	before := kit.CPU(old[0])
	kit.Every(span, span, func(int) bool { return true })
	used := kit.CPU(old[0]) - before
	t.Logf("draining worker used %v of %v", used, span)
	if used > span/20 {
		t.Errorf("draining worker with idle connections used %v of %v", used, span)
	}
	busy.Stop().MustBeClean(t)
	quic.Stop()
	tcp.Stop()
	awaitOnlyCurrent(t, in, 5*time.Second)
	in.Reload()
	awaitOnlyCurrent(t, in, 2*time.Second)
}

// C016: reload returns when the new generation serves, stop returns by its
// limit; long streams hold up neither, and stop says what it waits for.
func TestReloadAndStopDoNotWaitForStreams(t *testing.T) {
	c := kit.Config{Routes: []string{kit.TunnelRoute(t, false)}}
	in := startWith(t, c.With("drain", "{timeout: 1h, stop_timeout: 2s}"))
	in.WriteFile("big", 8<<20)
	for range 5 {
		o := in.Client()
		o.StreamWindow = 16 << 10
		kit.StartDownload(t, dial(t, o), "/files/big", 16<<10)
		kit.OpenTunnel(t, in.Addr())
	}
	begin := time.Now()
	in.Reload()
	if took := time.Since(begin); took > 3*time.Second {
		t.Errorf("reload took %v", took)
	}
	in.Check()
	begin = time.Now()
	r := in.CLITerminal("stop", "--timeout", "20s")
	took := time.Since(begin)
	if r.Code != 0 || took > 5*time.Second {
		t.Errorf("stop: exit code %d after %v: %s", r.Code, took, r.Stderr)
	}
	if !regexp.MustCompile(`\b5 of QUIC and 5 of TCP\b`).MatchString(r.Stderr) {
		t.Errorf("stop does not say how many connections are open: %q", r.Stderr)
	}
	in.AwaitExit(2 * time.Second)
}

// C022: what holds an old worker can be seen, and ended by name.
func TestOneConnectionCanBeEnded(t *testing.T) {
	in := start(t, 1)
	c := dial(t, in.Client())
	owner := whoami(t, c)
	h2 := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 1, TCP: "h2"})
	in.Reload()
	kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 2})
	held := func() []kit.ConnInfo {
		var old []kit.ConnInfo
		for _, x := range in.Conns() {
			if x.Generation == owner.Generation {
				old = append(old, x)
			}
		}
		return old
	}
	kit.Eventually(t, 5*time.Second, "connections of the old generation listed", func() error {
		if n := len(held()); n != 2 {
			return fmt.Errorf("%d listed", n)
		}
		return nil
	})
	for _, x := range held() {
		if x.Kind == "quic" && x.Remote == "" || x.Protocol == "" || x.ID == "" {
			t.Errorf("listed without detail: %+v", x)
		}
		if r := in.CLI("conns", "close", x.ID); r.Code != 0 {
			t.Errorf("conns close %s: exit code %d: %s", x.ID, r.Code, r.Stderr)
		}
	}
	if cause := awaitLost(t, c, 3*time.Second); !orderly(cause) {
		t.Errorf("connection ended by %s", cause)
	}
	awaitOnlyCurrent(t, in, 5*time.Second)
	if r := in.CLI("conns", "close", "0.0.0"); r.Code != 1 || r.Stderr == "" {
		t.Errorf("close of a connection that is not there: exit code %d: %q", r.Code, r.Stderr)
	}
	h2.Stop()
}

// C023: a crowd of idle connections does not disturb the active ones.
func TestIdleCrowdDoesNotDisturb(t *testing.T) {
	in := start(t, 2)
	crowd := in.Client()
	crowd.IdleTimeout = 5 * time.Minute
	idle := kit.StartFleet(t, kit.FleetOptions{Client: crowd, N: kit.Scale(400, 5000), Interval: time.Hour})
	active := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 20, Interval: 100 * time.Millisecond})
	old := in.WorkerPIDs()
	in.Reload()
	kit.Eventually(t, 5*time.Second, "old generation at rest", func() error {
		const window = 500 * time.Millisecond
		var before, after time.Duration
		for _, pid := range old {
			before += kit.CPU(pid)
		}
		kit.Every(window, window, func(int) bool { return true })
		for _, pid := range old {
			after += kit.CPU(pid)
		}
		if used := after - before; used > window/5 {
			return fmt.Errorf("%v of %v used", used, window)
		}
		return nil
	})
	r := active.Stop()
	r.MustBeClean(t)
	if r.Longest() > time.Second {
		t.Errorf("active connection waited %v", r.Longest())
	}
	idle.Stop().MustBeLossless(t)
}

// C025: a stop has its own, shorter limit than the drain of a reload.
func TestStopLimitIsNotTheDrainLimit(t *testing.T) {
	in := startWith(t, kit.Config{}.With("drain", "{timeout: 1h, stop_timeout: 2s}"))
	f := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 10, Interval: 100 * time.Millisecond})
	in.Reload()
	seen := f.Report().Requests
	kit.Eventually(t, 5*time.Second, "requests after the reload", func() error {
		if n := f.Report().Requests; n < seen+50 {
			return fmt.Errorf("%d", n-seen)
		}
		return nil
	})
	if r := f.Report(); len(r.Lost) > 0 {
		t.Errorf("lost over the reload: %v", r)
	}
	in.Check()
	in.Signal(syscall.SIGQUIT)
	if code := in.AwaitExit(4 * time.Second); code != 0 {
		t.Errorf("exit code %d after QUIT", code)
	}
	kit.Eventually(t, 2*time.Second, "clients told", func() error {
		if n := len(f.Report().Lost); n < 10 {
			return fmt.Errorf("%d of 10", n)
		}
		return nil
	})
	for _, l := range f.Stop().Lost {
		if !orderly(l.Cause) {
			t.Errorf("connection ended by %s", l.Cause)
		}
	}
}
