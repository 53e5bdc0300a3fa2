package test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/test/kit"
)

// storm is a load under a reload each second.
type storm struct {
	fleet   kit.FleetOptions
	n       int             // connections, a half of them from before the first reload
	workers func(i int) int // processes of the generation that the i-th reload makes
	total   time.Duration
}

// always is a storm's number of workers that never changes.
func always(n int) func(int) int { return func(int) int { return n } }

// run lets the storm pass and verifies that nobody noticed.
func (s storm) run(t *testing.T) {
	t.Helper()
	in := start(t, s.workers(0))
	s.fleet.Client.Server = in.Addr()
	s.fleet.N = s.n / 2
	early := kit.StartFleet(t, s.fleet)
	reload(t, in)
	late := kit.StartFleet(t, s.fleet)
	prober := kit.StartProber(t, in.Client(), 50*time.Millisecond)
	fds, memory := kit.Descriptors(in.PID()), kit.Memory(in.PID(), "RssAnon")

	reloads := 0
	kit.Every(time.Second, s.total, func(i int) bool {
		in.WriteConfig(in.Config.WithBody(fmt.Sprint("v", i)).WithWorkers(s.workers(i + 1)))
		if err := in.ReloadAPI(); err != nil {
			t.Errorf("reload %d: %v", i, err)
			return false
		}
		reloads++
		return true
	})

	prober.Stop().MustBeClean(t)
	early.Stop().MustBeClean(t)
	late.Stop().MustBeClean(t)
	st := awaitOnlyCurrent(t, in, 15*time.Second)
	t.Logf("%d reloads, %d packets received, %d forwarded; supervisor: %d descriptors (%d before), %d KiB (%d before)",
		reloads, st.Counter("packets_received"), st.Counter("packets_forwarded"),
		kit.Descriptors(in.PID()), fds, kit.Memory(in.PID(), "RssAnon")>>10, memory>>10)
	// Sockets and doorbells come with the largest generation and with the
	// most workers alive at once; nothing comes with each reload.
	if now := kit.Descriptors(in.PID()); now > fds+24 {
		t.Errorf("supervisor has %d descriptors, %d before the storm", now, fds)
	}
	if now := kit.Memory(in.PID(), "RssAnon"); now > 2*memory+32<<20 {
		t.Errorf("supervisor uses %d MiB, %d before the storm", now>>20, memory>>20)
	}
}

// connections is the size of a storm that the machine carries beside all else.
func connections() int { return kit.Scale(300, 1000) }

// C005, C007: a reload each second, requests on every connection, new
// connections beside them, with every number of workers.
func TestReloadEachSecondLosesNothing(t *testing.T) {
	mixed := []int{1, 3, 2, 4}
	for _, c := range []struct {
		name    string
		workers func(int) int
	}{
		{"one worker", always(1)},
		{"two workers", always(2)},
		{"four workers", always(4)},
		{"changing workers", func(i int) int { return mixed[i%len(mixed)] }},
	} {
		t.Run(c.name, func(t *testing.T) {
			storm{n: connections(), workers: c.workers, total: kit.Scale(6*time.Second, 300*time.Second)}.run(t)
		})
	}
}

// C001: a draining worker must not catch new connections, however busy.
func TestReloadSendsNewConnectionsToTheNewGeneration(t *testing.T) {
	in := start(t, 4)
	in.WriteFile("big", 4<<20)
	for range 8 {
		o := in.Client()
		o.StreamWindow = 32 << 10
		kit.StartDownload(t, dial(t, o), "/files/big", 64<<10)
	}
	before := in.Current()
	in.Reload()
	after := in.Current()
	_, h := kit.Burst(t, in.Client(), 200, 16)
	h.MustBeClean(t)
	if after == before || h.By[after] != 200 {
		t.Errorf("generation %d is current; accepted by generation: %v", after, h.By)
	}
	// From one connection's first packet to its first answer.
	if l := h.Longest(); l > time.Second {
		t.Errorf("slowest connection took %v", l)
	}
}

// C006: the old worker keeps a way to send until its last connection ends.
func TestReloadKeepsSlowDownloads(t *testing.T) {
	in := start(t, 2)
	const size = 4 << 20
	sum := in.WriteFile("big", size)
	o := in.Client()
	o.StreamWindow = 256 << 10
	c := dial(t, o)
	owner := whoami(t, c)
	d := kit.StartDownload(t, c, "/files/big", 1<<20)
	for _, share := range []int64{size / 10, size / 2} {
		d.AwaitBytes(t, share, 10*time.Second)
		in.Reload()
	}
	d.MustBe(t, sum, 20*time.Second)
	if now := whoami(t, c); now.Incarnation != owner.Incarnation {
		t.Errorf("connection moved from %+v to %+v", owner, now)
	}
	if g := d.Gap(); g > time.Second {
		t.Errorf("download stood still for %v", g)
	}
}

// C008: what an old connection is served with is visible, and a client that
// is asked to leave finds the new configuration at its first try.
func TestOldConnectionsShowTheirConfiguration(t *testing.T) {
	in := startWith(t, kit.Config{}.With("drain", "{mode: hold, timeout: 1h}"))
	c := dial(t, in.Client())
	old := whoami(t, c)
	in.WriteConfig(in.Config.WithBody("v2").With("drain", "{mode: goaway, timeout: 1h, goaway_window: 100ms}"))
	in.Reload()
	if got := body(t, dial(t, in.Client()), "/"); got != "v2" {
		t.Errorf("new connection is answered with %q", got)
	}
	s := in.Status()
	g, ok := s.Generation(old.Generation)
	if !ok || g.ConfigHash != old.ConfigHash || g.ConfigHash == s.Config.Hash {
		t.Errorf("generation %d runs %s, status says %s, current is %s",
			old.Generation, old.ConfigHash, g.ConfigHash, s.Config.Hash)
	}
}

// C013: an unchanged listener keeps its sockets, and nobody is refused.
func TestReloadKeepsTheListeningSockets(t *testing.T) {
	in := start(t, 2)
	quic := kit.StartProber(t, in.Client(), 20*time.Millisecond)
	tcp := kit.StartTCPProber(t, in.Client(), "http/1.1", 20*time.Millisecond)
	udpBefore, tcpBefore := kit.BoundSockets(in.Port())
	if len(udpBefore) == 0 || len(tcpBefore) == 0 {
		t.Fatalf("sockets on the port: udp %v, tcp %v", udpBefore, tcpBefore)
	}
	for i := range kit.Scale(15, 300) {
		reload(t, in)
		udp, tcp := kit.BoundSockets(in.Port())
		if !slices.Equal(udp, udpBefore) || !slices.Equal(tcp, tcpBefore) {
			t.Fatalf("after reload %d: udp %v (were %v), tcp %v (were %v)", i+1, udp, udpBefore, tcp, tcpBefore)
		}
	}
	quic.Stop().MustBeClean(t)
	tcp.Stop().MustBeClean(t)
}

// C018: a reload that comes while another start is under way harms nobody.
func TestReloadDuringAStart(t *testing.T) {
	in := start(t, 2)
	f := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 20, Interval: 100 * time.Millisecond})
	before := in.Current()
	in.Misbehave(kit.WorkerStartsSlowly(time.Second), 2)
	in.HUP()
	in.AwaitStatus(5*time.Second, "a generation starts", func(s kit.Status) error {
		if len(s.In("starting")) == 0 {
			return fmt.Errorf("none in %+v", s.Generations)
		}
		return nil
	})
	in.HUP()
	in.HUP()
	in.AwaitGeneration(before + 1)
	in.AwaitStatus(10*time.Second, "reloads done", func(s kit.Status) error {
		if n := len(s.In("starting")) + len(s.In("ready")) + len(s.In("probed")); n > 0 {
			return fmt.Errorf("%d generations on their way", n)
		}
		if done := s.Counter("reloads_ok") + s.Counter("reloads_merged"); done < 2 {
			return fmt.Errorf("%d reloads accounted for", done)
		}
		return nil
	})
	if n := len(in.Status().In("current")); n != 1 {
		t.Errorf("%d generations are current", n)
	}
	f.Stop().MustBeClean(t)
}

// C020, C021: reloads that come too fast are merged and counted, the last one
// is served, and generations stay within their limit.
func TestReloadStormIsMerged(t *testing.T) {
	in := startWith(t, kit.Config{}.With("reload", "{min_interval: 1s}").
		With("drain", "{max_generations: 3, overflow: evict, timeout: 1h, stop_timeout: 1s}"))
	f := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 20, Interval: 100 * time.Millisecond})
	start := time.Now()
	hups := 0
	kit.Every(20*time.Millisecond, 2*time.Second, func(i int) bool {
		in.WriteConfig(in.Config.WithBody(fmt.Sprint("v", i)))
		in.HUP()
		hups++
		if s, err := in.TryStatus(); err == nil && len(draining(s)) > 3 {
			t.Errorf("%d generations drain", len(draining(s)))
		}
		return true
	})
	in.WriteConfig(in.Config.WithBody("last"))
	in.HUP()
	kit.Eventually(t, 5*time.Second, "the last reload served", func() error {
		if got := body(t, dial(t, in.Client()), "/"); got != "last" {
			return fmt.Errorf("answer is %q", got)
		}
		return nil
	})
	s := in.Status()
	atMost := uint64(time.Since(start)/time.Second) + 2
	t.Logf("%d signals: %d reloads, %d merged", hups+1, s.Counter("reloads_ok"), s.Counter("reloads_merged"))
	if ok := s.Counter("reloads_ok"); ok > atMost || ok < 2 {
		t.Errorf("%d reloads ran in %v", ok, time.Since(start))
	}
	if s.Counter("reloads_merged") == 0 {
		t.Error("no reload is counted as merged")
	}
	f.Stop().MustBeClean(t)
}

// C024: a listener moves between overlapping addresses without loss.
func TestListenerMovesToAnOverlappingAddress(t *testing.T) {
	in := start(t, 2)
	port := in.Port()
	f := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 20, Interval: 100 * time.Millisecond})
	tcp := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 5, TCP: "h2", Interval: 100 * time.Millisecond})
	prober := kit.StartProber(t, in.Client(), 50*time.Millisecond)
	tcpProber := kit.StartTCPProber(t, in.Client(), "h2", 50*time.Millisecond)
	for _, host := range []string{"0.0.0.0", "127.0.0.1", "0.0.0.0"} {
		c := in.Config
		c.Listeners = []kit.Listener{{Name: "public", Address: fmt.Sprintf("%s:%d", host, port)}}
		in.WriteConfig(c)
		in.Reload()
		o := in.Client()
		if host == "0.0.0.0" {
			o.Server = fmt.Sprintf("127.0.0.2:%d", port)
		}
		whoami(t, dial(t, o))
	}
	prober.Stop().MustBeClean(t)
	tcpProber.Stop().MustBeClean(t)
	f.Stop().MustBeClean(t)
	tcp.Stop().MustBeClean(t)
}

// C044: connections outlive every change of the number of workers.
func TestWorkerCountChangesKeepEveryConnection(t *testing.T) {
	counts := []int{4, 2, 6, 1}
	in := start(t, counts[0])
	var fleets []*kit.Fleet
	for i := range counts {
		f := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 3 * counts[i] * 2, Interval: 200 * time.Millisecond})
		fleets = append(fleets, f)
		if i+1 < len(counts) {
			in.WriteConfig(in.Config.WithWorkers(counts[i+1]))
			in.Reload()
			if g, _ := in.Status().Current(); len(g.Workers) != counts[i+1] {
				t.Errorf("generation %d has %d workers, want %d", g.ID, len(g.Workers), counts[i+1])
			}
		}
	}
	held := 0
	for _, f := range fleets {
		held += f.Report().Clients
	}
	kit.Eventually(t, 5*time.Second, "every connection listed with its owner", func() error {
		if n := len(in.Conns()); n != held {
			return fmt.Errorf("%d connections listed, %d held", n, held)
		}
		return nil
	})
	for _, f := range fleets {
		kit.Eventually(t, 10*time.Second, "requests after the last change", func() error {
			if r := f.Report(); r.Requests < 3*r.Clients {
				return fmt.Errorf("%d requests", r.Requests)
			}
			return nil
		})
		f.Stop().MustBeClean(t)
	}
}

// C060: reloads in the same moment, good and bad, leave one truth.
func TestReloadsAtTheSameTimeAreInOrder(t *testing.T) {
	in := start(t, 2)
	f := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 10, Interval: 100 * time.Millisecond})
	for i := range kit.Scale(10, 200) {
		if i%2 == 0 {
			in.WriteRaw("listeners: [broken\n")
		} else {
			in.WriteConfig(in.Config.WithBody(fmt.Sprint("v", i)))
		}
		done := make(chan error, 2)
		for range 2 {
			go func() { done <- in.ReloadAPI() }()
		}
		for range 2 {
			if err := <-done; (err != nil) != (i%2 == 0) {
				t.Errorf("reload %d: %v", i, err)
			}
		}
		if pid, err := in.PIDFile(); err != nil || pid != in.PID() {
			t.Errorf("PID file says %d, %v; the supervisor is %d", pid, err, in.PID())
		}
	}
	f.Stop().MustBeClean(t)
	s := awaitOnlyCurrent(t, in, 10*time.Second)
	// Every process of the instance is the supervisor or a worker it knows.
	kit.Eventually(t, 5*time.Second, "no process unknown", func() error {
		known := []int{in.PID()}
		for _, w := range s.Workers() {
			known = append(known, w.PID)
		}
		for _, pid := range in.Processes() {
			if !slices.Contains(known, pid) {
				return fmt.Errorf("process %d is not one of %v", pid, known)
			}
		}
		return nil
	})
}
