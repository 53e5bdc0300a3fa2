package test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-quic/holdfast/test/kit"
)

// managed starts an instance under a service manager.
func managed(t *testing.T, watchdog time.Duration, c kit.Config) (*kit.Manager, *kit.Instance) {
	t.Helper()
	m := kit.NewManager(t)
	return m, kit.Start(t, kit.Options{Config: c, Env: m.Env(watchdog, 0), Prefix: kit.OwnPID})
}

func monotonicMicros(t *testing.T) int64 {
	t.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		t.Fatal(err)
	}
	return ts.Nano() / 1000
}

// reloading is the message that a manager takes for the answer to what it
// asked for at that time.
func reloading(since int64) func(kit.Notice) bool {
	return func(n kit.Notice) bool {
		at, err := strconv.ParseInt(n.Fields["MONOTONIC_USEC"], 10, 64)
		return err == nil && n.Fields["RELOADING"] == "1" && at >= since
	}
}

// C129, C130: what a service manager is told over a service's life, in order
// and complete, whatever comes of the reloads; all of it by the main process.
func TestServiceManagerIsTold(t *testing.T) {
	m, in := managed(t, 0, kit.Config{Workers: 2})
	ready, at := m.Await(5*time.Second, 0, "READY", kit.Has("READY", "1"))
	for _, n := range m.Messages()[:at-1] {
		if n.Fields["RELOADING"] != "" || n.Fields["STOPPING"] != "" {
			t.Errorf("before the start was done: %v", n.Fields)
		}
	}
	if status := ready.Fields["STATUS"]; !strings.HasPrefix(status, "generation 1: 2 workers") {
		t.Errorf("status %q", status)
	}
	if _, ok := ready.Fields["MAINPID"]; ok {
		t.Error("MAINPID of a process that the manager knows")
	}

	begun := monotonicMicros(t)
	in.HUP()
	_, at = m.Await(5*time.Second, at, "RELOADING", reloading(begun))
	ready, at = m.Await(20*time.Second, at, "READY after the reload", kit.Has("READY", "1"))
	if status := ready.Fields["STATUS"]; !strings.HasPrefix(status, "generation 2: 2 workers") {
		t.Errorf("status %q", status)
	}

	t.Run("broken configuration", func(t *testing.T) {
		in.WriteRaw("listeners: [")
		begun := monotonicMicros(t)
		in.HUP()
		_, at = m.Await(5*time.Second, at, "RELOADING", reloading(begun))
		ready, at = m.Await(5*time.Second, at, "READY after a failed reload", kit.Has("READY", "1"))
		if status := ready.Fields["STATUS"]; !strings.HasPrefix(status, "generation 2: ") || !strings.Contains(status, "reload: ") {
			t.Errorf("status %q", status)
		}
	})
	t.Run("worker never ready", func(t *testing.T) {
		in.WriteConfig(in.Config.With("start", "{ready_timeout: 2s}"))
		in.Misbehave(kit.WorkerMute, 0)
		begun := monotonicMicros(t)
		in.HUP()
		_, at = m.Await(5*time.Second, at, "RELOADING", reloading(begun))
		ready, at = m.Await(10*time.Second, at, "READY after a failed reload", kit.Has("READY", "1"))
		if status := ready.Fields["STATUS"]; !strings.HasPrefix(status, "generation 2: ") || !strings.Contains(status, "reload: ") {
			t.Errorf("status %q", status)
		}
		in.Misbehave("", 0)
	})

	t.Run("overlapping reloads", func(t *testing.T) {
		in.WriteConfig(in.Config)
		var last int64
		for range 5 {
			last = monotonicMicros(t)
			in.HUP()
			time.Sleep(30 * time.Millisecond) // signals of one number merge
		}
		_, at = m.Await(5*time.Second, at, "RELOADING of the last one", reloading(last))
		_, at = m.Await(30*time.Second, at, "READY after the last one", kit.Has("READY", "1"))
		in.AwaitStatus(10*time.Second, "idle", func(kit.Status) error {
			if n := len(m.Messages()); n > at && m.Messages()[n-1].Fields["RELOADING"] == "1" {
				return errors.New("a reload has not ended")
			}
			return nil
		})
	})
	t.Run("by command", func(t *testing.T) {
		begun := monotonicMicros(t)
		if r := in.CLI("reload"); r.Code != 0 {
			t.Fatalf("reload: %s", r.Stderr)
		}
		_, at = m.Await(time.Second, at, "RELOADING", reloading(begun))
		_, at = m.Await(5*time.Second, at, "READY", kit.Has("READY", "1"))
	})

	in.Stop()
	stopping, at := m.Await(time.Second, at, "STOPPING", kit.Has("STOPPING", "1"))
	if !strings.HasPrefix(stopping.Fields["STATUS"], "stopping") || stopping.Fields["EXTEND_TIMEOUT_USEC"] == "" {
		t.Errorf("STOPPING with %v", stopping.Fields)
	}
	for _, n := range m.Messages()[at:] {
		if n.Fields["READY"] != "" || n.Fields["RELOADING"] != "" {
			t.Errorf("after the stop: %v", n.Fields)
		}
	}
	for _, n := range m.Messages() {
		if n.PID != in.PID() {
			t.Errorf("process %d, not the supervisor %d, said %v", n.PID, in.PID(), n.Fields)
		}
		if n.Fields["FDSTORE"] != "" {
			t.Errorf("a descriptor for a manager that keeps none: %v", n.Fields)
		}
	}
}

// C131: the watchdog is fed by the loop: a supervisor that hangs is noticed,
// one whose workers hang or drain is not taken for one that does.
func TestWatchdog(t *testing.T) {
	const limit = time.Second
	m, in := managed(t, limit, kit.Config{Workers: 2})
	fed := func() time.Duration {
		all := m.Messages()
		for i := len(all) - 1; i >= 0; i-- {
			if all[i].Fields["WATCHDOG"] == "1" {
				return time.Since(all[i].When)
			}
		}
		return time.Hour
	}
	alwaysFed := func(during time.Duration) {
		t.Helper()
		kit.Every(50*time.Millisecond, during, func(int) bool {
			if since := fed(); since > limit {
				t.Errorf("no sign of life for %v", since)
				return false
			}
			return true
		})
	}
	held := dial(t, in.Client())
	whoami(t, held)
	reload(t, in)
	worker := in.WorkerPIDs(in.Current())[0]
	kit.Signal(worker, syscall.SIGSTOP)
	alwaysFed(kit.Scale(4*time.Second, 20*time.Second))
	kit.Signal(worker, syscall.SIGCONT)

	in.Signal(syscall.SIGSTOP)
	kit.Eventually(t, 10*time.Second, "the manager notices", func() error {
		if since := fed(); since < 3*limit {
			return fmt.Errorf("fed %v ago", since)
		}
		return nil
	})
	in.Signal(syscall.SIGCONT)
	kit.Eventually(t, 5*time.Second, "fed again", func() error {
		if since := fed(); since > limit {
			return fmt.Errorf("fed %v ago", since)
		}
		return nil
	})
	whoami(t, held)
}

// C131: a watchdog that was set for another process is none of ours.
func TestWatchdogOfAnotherProcess(t *testing.T) {
	m := kit.NewManager(t)
	kit.Start(t, kit.Options{Env: append(m.Env(time.Second, 0), "WATCHDOG_PID=1")})
	_, at := m.Await(5*time.Second, 0, "READY", kit.Has("READY", "1"))
	kit.Every(100*time.Millisecond, 2*time.Second, func(int) bool { return true })
	for _, n := range m.Messages()[at:] {
		if n.Fields["WATCHDOG"] != "" {
			t.Fatalf("message %v", n.Fields)
		}
	}
}

// C132: a supervisor that was not started by the manager itself says who it
// is.
func TestStartedByAWrapper(t *testing.T) {
	m := kit.NewManager(t)
	in := kit.Start(t, kit.Options{Env: append(m.Env(0, 0), "SYSTEMD_EXEC_PID=1")})
	ready, _ := m.Await(5*time.Second, 0, "READY", kit.Has("READY", "1"))
	if got := ready.Fields["MAINPID"]; got != strconv.Itoa(in.PID()) {
		t.Errorf("MAINPID %q, want %d", got, in.PID())
	}
}

// C140: workers know nothing of the service manager.
func TestWorkersDoNotSeeTheServiceManager(t *testing.T) {
	m := kit.NewManager(t)
	in := kit.Start(t, kit.Options{
		Env:    append(append(m.Env(5*time.Second, 0), kit.Passing()...), "LISTEN_PIDFDID=1", "MAINPID=1"),
		Prefix: kit.OwnPID,
	})
	for _, pid := range in.WorkerPIDs() {
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil {
			t.Fatal(err)
		}
		for e := range strings.SplitSeq(string(environ), "\x00") {
			name, _, _ := strings.Cut(e, "=")
			switch {
			case name == "NOTIFY_SOCKET", name == "FDSTORE", name == "MAINPID", strings.HasPrefix(name, "WATCHDOG"),
				strings.HasPrefix(name, "LISTEN_"), name == "SYSTEMD_EXEC_PID":
				t.Errorf("a worker sees %s", e)
			}
		}
	}
}

// C130: a start that fails says why, and is not ready.
func TestFailedStartIsTold(t *testing.T) {
	m := kit.NewManager(t)
	in := kit.Prepare(t, kit.Options{Env: m.Env(0, 0), SharedPort: true})
	defer occupy(t, "udp", in.Addr())()
	in.Launch()
	if code := in.AwaitExit(20 * time.Second); code != 1 {
		t.Errorf("exit code %d", code)
	}
	m.Await(time.Second, 0, "the reason", func(n kit.Notice) bool {
		return strings.HasPrefix(n.Fields["STATUS"], "failed: ") && strings.Contains(n.Fields["STATUS"], in.Addr())
	})
	for _, n := range m.Messages() {
		if n.Fields["READY"] != "" {
			t.Errorf("ready: %v", n.Fields)
		}
	}
}

// C131, C132: over an upgrade the same process says that it is ready again, and
// goes on showing signs of life and taking reloads; the sockets of a socket unit
// are still known as such.
func TestServiceManagerIsToldOverUpgrades(t *testing.T) {
	const limit = 2 * time.Second
	udp, tcp, address := passedPair(t, true)
	m := kit.NewManager(t)
	in, path := installed(t, kit.Options{
		Config: kit.Config{Listeners: []kit.Listener{{Name: "public", Address: address}}}.With("upgrade", "{probation: 1s}"),
		Env:    append(m.Env(limit, 64), kit.Passing("public", "public")...), Files: []*os.File{udp, tcp},
		Prefix: kit.OwnPID, SharedPort: true,
	})
	_, at := m.Await(5*time.Second, 0, "READY", kit.Has("READY", "1"))
	pid := in.PID()
	for _, version := range []string{"2.0.0", "1.0.0"} {
		kit.Install(t, kit.Build(t, version), path)
		upgrade(t, in)
		running(t, in, version, pid)
		_, at = m.Await(10*time.Second, at, "READY of the new program", kit.Has("READY", "1"))
		_, at = m.Await(limit, at, "a sign of its life", kit.Has("WATCHDOG", "1"))
		begun := monotonicMicros(t)
		in.HUP()
		_, at = m.Await(5*time.Second, at, "RELOADING", reloading(begun))
		_, at = m.Await(20*time.Second, at, "READY after the reload", kit.Has("READY", "1"))
		var names []string
		for _, s := range m.Store() {
			names = append(names, s.Name)
		}
		if slices.Sort(names); !slices.Equal(names, []string{"segment", "socket.0.udp.1"}) {
			t.Errorf("the store holds %q", names)
		}
		for i, n := range m.Messages() {
			if n.PID != pid || n.Fields["STOPPING"] != "" {
				t.Errorf("message %d of process %d (main %d): %v", i, n.PID, pid, n.Fields)
			}
		}
	}
	var last time.Time
	for _, n := range m.Messages() {
		if n.Fields["WATCHDOG"] != "1" {
			continue
		}
		if !last.IsZero() && n.When.Sub(last) > limit {
			t.Errorf("no sign of life for %v", n.When.Sub(last))
		}
		last = n.When
	}
}
