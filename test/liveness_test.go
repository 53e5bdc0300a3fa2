package test

import (
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/test/kit"
)

// hung returns the processes that count as hung.
func hung(t *testing.T, in *kit.Instance) (pids []int) {
	t.Helper()
	for _, w := range in.Status().Workers() {
		if w.Hung {
			pids = append(pids, w.PID)
		}
	}
	return pids
}

// C131: a worker that is stopped for a while, or looked at in a debugger, is
// not killed. Its sockets are read meanwhile, so new connections work, and
// those of its own clients go on afterwards.
func TestStoppedWorkerIsCoveredAndNotKilled(t *testing.T) {
	in := start(t, 3)
	o := in.Client()
	o.IdleTimeout = time.Minute
	fleet := kit.StartFleet(t, kit.FleetOptions{Client: o, N: 12, Interval: 200 * time.Millisecond})
	kit.Eventually(t, 5*time.Second, "owners known", func() error {
		if n := fleet.Report().Requests; n < 24 {
			return fmt.Errorf("%d requests", n)
		}
		return nil
	})
	victim := in.WorkerPIDs()[0]
	if err := kit.Signal(victim, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kit.Signal(victim, syscall.SIGCONT) })
	stopped := time.Now()
	kit.Eventually(t, 8*time.Second, "worker counts as hung", func() error {
		if got := hung(t, in); len(got) != 1 || got[0] != victim {
			return fmt.Errorf("hung: %v", got)
		}
		return nil
	})
	prober := kit.StartProber(t, in.Client(), 50*time.Millisecond)
	rest := kit.Scale(8*time.Second, 20*time.Second) - time.Since(stopped)
	kit.Every(rest, rest, func(int) bool { return true })
	report := prober.Stop()
	if report.Failures() > 0 || report.Attempts == 0 {
		t.Errorf("new connections while a worker is stopped: %v", report)
	}
	if err := kit.Signal(victim, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	kit.Eventually(t, 5*time.Second, "worker is back", func() error {
		if got := hung(t, in); len(got) > 0 {
			return fmt.Errorf("hung: %v", got)
		}
		return nil
	})
	s := in.Status()
	if n := s.Counter("worker_crashes"); n != 0 || !kit.Alive(victim) {
		t.Errorf("%d crashes", n)
	}
	seen := fleet.Report().Requests
	kit.Eventually(t, 10*time.Second, "requests of all connections", func() error {
		if n := fleet.Report().Requests; n < seen+36 {
			return fmt.Errorf("%d", n-seen)
		}
		return nil
	})
	if r := fleet.Stop(); len(r.Lost) > 0 {
		t.Errorf("connections lost: %v", r)
	}
}

// A worker that does not come back is replaced, and only that one.
func TestHungWorkerIsReplacedAtTheLimit(t *testing.T) {
	in := startWith(t, kit.Config{Workers: 2}.With("liveness", "{timeout: 5s}"))
	victim, sibling := in.WorkerPIDs()[0], in.WorkerPIDs()[1]
	if err := kit.Signal(victim, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	in.AwaitStatus(15*time.Second, "worker replaced", func(s kit.Status) error {
		if n := s.Counter("worker_crashes"); n != 1 {
			return fmt.Errorf("%d crashes", n)
		}
		// It is counted when it is killed, and listed until it has ended.
		if slices.ContainsFunc(s.Workers(), func(w kit.Worker) bool { return w.PID == victim }) {
			return fmt.Errorf("worker %d has not ended", victim)
		}
		return allServe(in, 2)
	})
	if kit.Alive(victim) || !kit.Alive(sibling) {
		t.Errorf("alive: victim %v, sibling %v", kit.Alive(victim), kit.Alive(sibling))
	}
	if !strings.Contains(in.Log(), "hung for too long") {
		t.Error("the log does not say why")
	}
	whoami(t, dial(t, in.Client()))
}

// The level of the log is that of the workers too, and a reload changes it.
func TestLogLevelReachesWorkers(t *testing.T) {
	in := start(t, 1)
	// What a client does wrong is worth a line at debug.
	nonsense := func() {
		c, err := net.Dial("tcp", in.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprint(c, "no TLS\r\n\r\n")
		_, _ = io.Copy(io.Discard, c) // until the worker has noticed
	}
	const line = "TLS handshake error"
	nonsense()
	config := in.Config.With("log", "{level: debug}")
	in.WriteConfig(config)
	in.Reload()
	if strings.Contains(in.Log(), line) {
		t.Error("a worker logs what is less than info")
	}
	nonsense()
	kit.Eventually(t, 5*time.Second, "debug lines of a worker", func() error {
		if !strings.Contains(in.Log(), line) {
			return fmt.Errorf("none")
		}
		return nil
	})
}
