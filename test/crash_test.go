package test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/test/kit"
)

// A worker killed each 300 ms under load takes its own connections with it
// and no others. Their clients learn of it by a stateless reset, and the
// survivors hardly notice: they wait no more than 200 ms longer than clients
// of a plain server do at the same time.
func TestKilledWorkersTakeOnlyTheirOwnConnections(t *testing.T) {
	plain := kit.StartPlain(t)
	in := start(t, 4)
	load := kit.FleetOptions{Client: in.Client(), N: kit.Scale(200, 500), Interval: 200 * time.Millisecond, Reconnect: true}
	load.Client.IdleTimeout = time.Minute // so that a time-out cannot pass for a reset
	load.Timeout = 20 * time.Second
	load.Rest = time.Second // else the handshakes of the others are what a survivor waits for
	f := kit.StartFleet(t, load)
	// As many clients as one of the four workers has.
	control := kit.StartFleet(t, kit.FleetOptions{
		Client: kit.ClientOptions{Server: plain}, N: load.N / 4, Interval: load.Interval, Path: "/", Timeout: load.Timeout,
	})

	killed := map[int]time.Time{}
	kit.Every(300*time.Millisecond, kit.Scale(9*time.Second, time.Minute), func(int) bool {
		var alive []int
		for _, w := range in.Status().Workers() {
			if w.Phase == "serving" && killed[w.PID].IsZero() {
				alive = append(alive, w.PID)
			}
		}
		if len(alive) < 2 {
			return true // one must be left to survive
		}
		victim := alive[rand.IntN(len(alive))]
		killed[victim] = time.Now()
		if err := kit.Signal(victim, syscall.SIGKILL); err != nil {
			t.Errorf("kill %d: %v", victim, err)
		}
		return true
	})
	r, c := f.Stop(), control.Stop()
	t.Logf("%d workers killed; clients: %v", len(killed), r)
	c.MustBeClean(t)
	for _, l := range r.Lost {
		if l.Owner.PID != 0 && killed[l.Owner.PID].IsZero() {
			t.Errorf("connection of live process %d lost by %s", l.Owner.PID, l.Cause)
		}
		if l.Cause != kit.CauseReset {
			t.Errorf("connection of killed process %d ended by %s", l.Owner.PID, l.Cause)
		}
	}
	for cause := range r.Failures {
		if cause != kit.CauseReset {
			t.Errorf("requests failed by %s", cause)
		}
	}
	if r.Strangers > 0 {
		t.Errorf("%d answers by a process that does not own the connection", r.Strangers)
	}
	// Where everybody waits for the machine, work takes as much longer, and so
	// does what a survivor waits for.
	beyond := max(200*time.Millisecond, c.Longest())
	if worst := r.Longest(); worst > c.Longest()+beyond {
		t.Errorf("a survivor waited %v, clients of a plain server %v", worst, c.Longest())
	}
	kit.Eventually(t, 20*time.Second, "all workers serve again", func() error { return allServe(in, 4) })
}

// allServe says whether the current generation has n serving workers.
func allServe(in *kit.Instance, n int) error {
	s, err := in.TryStatus()
	if err != nil {
		return err
	}
	g, _ := s.Current()
	serving := 0
	for _, w := range g.Workers {
		if w.Phase == "serving" {
			serving++
		}
	}
	if serving != n {
		return fmt.Errorf("%d of %d workers serve", serving, n)
	}
	return nil
}

// C059: a crash in mid-reload or in a drain is the crash of one process.
func TestCrashAroundAReloadStaysAlone(t *testing.T) {
	t.Run("of a new worker", func(t *testing.T) {
		in := start(t, 3)
		f := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 30, Interval: 100 * time.Millisecond})
		in.Reload()
		g, _ := in.Status().Current()
		if err := kit.Signal(g.Workers[0].PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		prober := kit.StartProber(t, in.Client(), 50*time.Millisecond)
		kit.Eventually(t, 10*time.Second, "worker replaced", func() error { return allServe(in, 3) })
		now, _ := in.Status().Generation(g.ID)
		for _, w := range g.Workers[1:] {
			if !slices.ContainsFunc(now.Workers, func(x kit.Worker) bool { return x.PID == w.PID }) {
				t.Errorf("sibling %d was replaced too", w.PID)
			}
		}
		prober.Stop()
		f.Stop().MustBeClean(t) // all of its connections belong to the old generation
	})
	t.Run("of a draining worker", func(t *testing.T) {
		in := start(t, 3)
		f := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 30, Interval: 100 * time.Millisecond})
		kit.Eventually(t, 5*time.Second, "owners known", func() error {
			if n := f.Report().Requests; n < 60 {
				return fmt.Errorf("%d requests", n)
			}
			return nil
		})
		old, _ := in.Status().Current()
		in.Reload()
		fresh := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 30, Interval: 100 * time.Millisecond})
		victim := old.Workers[0].PID
		if err := kit.Signal(victim, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		kit.Eventually(t, 5*time.Second, "its connections end", func() error {
			if len(f.Report().Lost) == 0 {
				return fmt.Errorf("none lost")
			}
			return nil
		})
		seen := fresh.Report().Requests
		kit.Eventually(t, 5*time.Second, "requests after the crash", func() error {
			if n := fresh.Report().Requests; n < seen+60 {
				return fmt.Errorf("%d", n-seen)
			}
			return nil
		})
		for _, l := range f.Stop().Lost {
			if l.Owner.PID != victim || l.Cause != kit.CauseReset {
				t.Errorf("connection of process %d lost by %s", l.Owner.PID, l.Cause)
			}
		}
		fresh.Stop().MustBeClean(t)
	})
	t.Run("of a whole generation before it is ready", func(t *testing.T) {
		in := startWith(t, kit.Config{Workers: 3}.With("start", "{ready_timeout: 5s, tries: 1}"))
		in.Misbehave(kit.WorkerMute, 0)
		unharmed(t, in, 1, []string{"worker"}, func() {
			go func() { // the workers appear once the reload has begun
				kit.Poll(5*time.Second, func() error {
					s, err := in.TryStatus()
					if err != nil || len(s.In("starting")) == 0 || len(s.In("starting")[0].Workers) < 3 {
						return fmt.Errorf("not yet")
					}
					for _, w := range s.In("starting")[0].Workers {
						if w.PID > 0 {
							kit.Signal(w.PID, syscall.SIGKILL)
						}
					}
					return nil
				})
			}()
		}, func() { in.Misbehave("", 0) })
	})
}

// C077, C106: after a crash of everything the successor has an empty table
// and tells the old connections at once, by the key that outlived the crash.
func TestClientsOfAKilledInstanceGetAReset(t *testing.T) {
	in := start(t, 2)
	o := in.Client()
	o.IdleTimeout = time.Minute
	var clients []*kit.Client
	for range 10 {
		c := dial(t, o)
		whoami(t, c)
		clients = append(clients, c)
	}
	in.Check()
	in.Kill()
	in.Restart()
	// Only the readiness probes of the new workers have left something there.
	if used := in.Status().Table.Used; used > 4*2 {
		t.Errorf("the new table has %d entries", used)
	}
	for _, c := range clients {
		begin := time.Now()
		go body0(c) // anything that makes it send
		if cause := awaitLost(t, c, 5*time.Second); cause != kit.CauseReset {
			t.Errorf("connection ended by %s", cause)
		}
		if took := time.Since(begin); took > time.Second {
			t.Errorf("the reset took %v", took)
		}
	}
	whoami(t, dial(t, in.Client()))
}

// body0 makes a request whose result does not matter.
func body0(c *kit.Client) {
	r, err := c.Open(c.Conn().Context(), "/")
	if err == nil {
		r.Body.Close()
	}
}

// C076: crashes leave nothing that adds up, and a start always works.
func TestCrashesLeaveNothingBehind(t *testing.T) {
	in := start(t, 2)
	before := len(kit.DescriptorTargets(in.PID()))
	shm := kit.MountUse(t, "/dev/shm")
	for range kit.Scale(4, 100) {
		whoami(t, dial(t, in.Client()))
		in.Kill()
		in.Restart()
	}
	// A generation is current before all that its start needed is closed.
	kit.Eventually(t, 10*time.Second, "descriptors as before", func() error {
		if now := kit.DescriptorTargets(in.PID()); len(now) > before+2 {
			return fmt.Errorf("%d after the crashes, %d before: %q", len(now), before, now)
		}
		return nil
	})
	if now := kit.MountUse(t, "/dev/shm"); now > shm {
		t.Errorf("/dev/shm holds %d bytes, %d before", now, shm)
	}
}
