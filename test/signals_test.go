package test

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/test/kit"
)

// C061: signals that mean nothing are ignored by supervisor and workers.
func TestOtherSignalsAreIgnored(t *testing.T) {
	in := start(t, 2)
	f := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 20, Interval: 50 * time.Millisecond})
	g, _ := in.Status().Current()
	for round := range 2 {
		if round == 1 {
			in.HUP() // once more in the middle of a reload
		}
		for _, sig := range []syscall.Signal{
			syscall.SIGPIPE, syscall.SIGALRM, syscall.SIGWINCH, syscall.SIGCHLD, syscall.SIGIO, syscall.SIGURG,
			syscall.SIGCONT, syscall.SIGVTALRM, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGTSTP,
		} {
			in.Signal(sig)
		}
		for _, w := range g.Workers {
			// Those of a terminal go to the whole group; what they mean is the
			// supervisor's to say.
			for _, sig := range []syscall.Signal{
				syscall.SIGHUP, syscall.SIGINT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGPIPE, syscall.SIGALRM,
				syscall.SIGWINCH, syscall.SIGCHLD, syscall.SIGIO, syscall.SIGURG, syscall.SIGCONT, syscall.SIGVTALRM,
				syscall.SIGQUIT,
			} {
				kit.Signal(w.PID, sig)
			}
		}
	}
	in.AwaitGeneration(g.ID + 1)
	f.Stop().MustBeClean(t)
	if n := in.Status().Counter("worker_crashes"); n > 0 {
		t.Errorf("%d workers ended", n)
	}
}

// C063: logs can be reopened at any moment, and then everybody writes to the
// new file.
func TestLogsCanBeReopenedDuringReloads(t *testing.T) {
	in := kit.Prepare(t, kit.Options{})
	access := filepath.Join(in.Dir, "access.log")
	in.Config = in.Config.With("access_log", fmt.Sprintf("{path: %q}", access))
	in.WriteConfig(in.Config)
	in.Launch()
	in.AwaitReady()
	f := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 10, Interval: 50 * time.Millisecond})
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		kit.Every(5*time.Millisecond, time.Hour, func(int) bool {
			in.Signal(syscall.SIGUSR1)
			select {
			case <-stop:
				return false
			default:
				return true
			}
		})
	}()
	for range kit.Scale(8, 50) {
		reload(t, in)
	}
	close(stop)
	<-done
	in.AwaitStatus(5*time.Second, "signals worked off", func(kit.Status) error { return nil })
	if err := os.Rename(access, access+".1"); err != nil {
		t.Fatal(err)
	}
	in.Signal(syscall.SIGUSR1)
	kit.Eventually(t, 2*time.Second, "the new file is written", func() error {
		data, err := os.ReadFile(access)
		if err == nil && len(data) == 0 {
			err = fmt.Errorf("%s is empty", access)
		}
		return err
	})
	size := func() int64 {
		st, err := os.Stat(access + ".1")
		if err != nil {
			t.Fatal(err)
		}
		return st.Size()
	}
	kit.Eventually(t, 2*time.Second, "the old file is left alone", func() error {
		before, seen := size(), f.Report().Requests
		kit.Eventually(t, 5*time.Second, "requests", func() error {
			if n := f.Report().Requests; n < seen+50 {
				return fmt.Errorf("%d", n-seen)
			}
			return nil
		})
		if now := size(); now != before {
			return fmt.Errorf("%d bytes more", now-before)
		}
		return nil
	})
	f.Stop().MustBeClean(t)
	if n := in.Status().Counter("worker_crashes"); n > 0 {
		t.Errorf("%d workers ended", n)
	}
}

// C067: the process that the parent waits for never changes, and an
// interrupt to the whole process group, as Ctrl-C sends it, stops all.
func TestProcessStaysTheSame(t *testing.T) {
	in := kit.Prepare(t, kit.Options{OwnGroup: true})
	in.Launch()
	in.AwaitReady()
	for range 3 {
		reload(t, in)
		if s := in.Status(); s.PID != in.PID() || !kit.Alive(in.PID()) {
			t.Errorf("the supervisor is process %d, started as %d", s.PID, in.PID())
		}
	}
	in.Check()
	if err := syscall.Kill(-in.PID(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := in.AwaitExit(5 * time.Second); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
