package kit

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// StopTimeout bounds a stop in order.
const StopTimeout = 20 * time.Second

// Exited is closed when the supervisor's process has ended.
func (i *Instance) Exited() <-chan struct{} { return i.exited }

// ExitCode is how the supervisor ended; -1 by a signal. It may be called when
// Exited is closed.
func (i *Instance) ExitCode() int { return i.cmd.ProcessState.ExitCode() }

// AwaitExit waits for the supervisor's end and returns its exit code.
func (i *Instance) AwaitExit(within time.Duration) int {
	i.t.Helper()
	select {
	case <-i.exited:
		return i.ExitCode()
	case <-time.After(within):
		i.t.Fatalf("supervisor did not end within %v\n%s", within, i.LogTail(30))
		return 0
	}
}

// Kill ends every process of the instance at once, as a crash of the host
// would.
func (i *Instance) Kill() {
	i.t.Helper()
	i.stopped = true
	// Stopped first, nobody sees another one die. The signal is only sent when
	// kill returns; threads run on until each has taken notice.
	Eventually(i.t, 10*time.Second, "all processes stopped", func() error {
		for _, pid := range processesOf(i.mark) {
			syscall.Kill(pid, syscall.SIGSTOP)
			if !stopped(pid) {
				return fmt.Errorf("process %d runs", pid)
			}
		}
		return nil
	})
	Eventually(i.t, 10*time.Second, "all processes killed", func() error {
		left := processesOf(i.mark)
		for _, pid := range left {
			// The supervisor last: the kernel continues stopped processes
			// whose parent dies.
			if pid != i.PID() || len(left) == 1 {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("processes %v live", left)
		}
		return nil
	})
	<-i.exited
}

// Restart starts the supervisor again after it ended, on the same files.
func (i *Instance) Restart() {
	i.t.Helper()
	if err := i.launch(); err != nil {
		i.t.Fatalf("restart supervisor: %v", err)
	}
	i.AwaitReady()
}

// Relaunch is Restart with other descriptors and further environment.
func (i *Instance) Relaunch(files []*os.File, env []string) {
	i.t.Helper()
	i.options.Files = files
	i.options.Env = append(slices.Clone(i.options.Env), env...)
	i.Restart()
}

// Stop ends the instance in order and checks what must hold before and after.
// Clients may still be connected; they see an orderly end.
func (i *Instance) Stop() {
	i.t.Helper()
	if i.stopped {
		return
	}
	i.stopped = true
	select {
	case <-i.exited: // by the scenario, which knows the exit code it wants
		i.checkGone()
		return
	default:
	}
	i.Check()
	i.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-i.exited:
		if i.exitErr != nil {
			i.fail("supervisor stopped with an error: %v", i.exitErr)
		}
	case <-time.After(StopTimeout):
		i.fail("supervisor did not stop within %v of TERM", StopTimeout)
		i.Kill()
	}
	i.checkGone()
}

// Close is Stop at the end of a test: it also looks at the descriptors of the
// test process, and prints the log of a failed test.
func (i *Instance) Close() {
	i.t.Helper()
	i.Stop()
	i.checkLog()
	// The descriptors of clients are closed by goroutines that may need a moment.
	err := Poll(5*time.Second, func() error {
		if n := Descriptors(os.Getpid()); n > i.fds+fdSlack {
			runtime.GC() // what a client dropped is closed by its finalizer
			return fmt.Errorf("test process has %d descriptors, %d before the start: %q", n, i.fds, DescriptorTargets(os.Getpid()))
		}
		return nil
	})
	if err != nil && !i.options.AllowLeaks {
		i.t.Error(err)
	}
	if i.t.Failed() {
		i.t.Logf("log of the instance:\n%s", i.LogTail(60))
	}
}

// fdSlack allows for what the runtime opens once: its poller, a random source.
const fdSlack = 4

func (i *Instance) fail(format string, args ...any) {
	i.t.Helper()
	i.failed = true
	i.t.Errorf(format, args...)
}

// Check verifies a running instance: counters add up and the segment has no
// fault.
func (i *Instance) Check() {
	i.t.Helper()
	if i.options.Corrupted {
		return
	}
	var s Status
	err := Poll(5*time.Second, func() error {
		var err error
		if s, err = i.TryStatus(); err != nil {
			return err
		}
		return s.CheckSums()
	})
	if err != nil {
		i.fail("counters do not add up: %v\n%v", err, s.Counters)
	}
	if r := i.CLI("check-segment"); r.Code != 0 {
		i.fail("check-segment: exit code %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
}

// MustBeGone verifies that nothing is left of an instance that has ended.
func (i *Instance) MustBeGone() {
	i.t.Helper()
	i.checkGone()
}

// checkGone verifies that nothing is left of a stopped instance.
func (i *Instance) checkGone() {
	i.t.Helper()
	if i.options.AllowLeaks {
		i.Kill()
		return
	}
	err := Poll(5*time.Second, func() error {
		if left := processesOf(i.mark); len(left) > 0 {
			return fmt.Errorf("processes %v live", left)
		}
		return nil
	})
	if err != nil {
		i.fail("after the stop: %v", err)
		i.Kill()
	}
	entries, err := os.ReadDir(i.RuntimeDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		i.fail("runtime directory: %v", err)
	}
	for _, e := range entries {
		if e.Name() != "lock" { // the lock's file stays, unlocked, so that two starts cannot race
			i.fail("after the stop: %s is left in the runtime directory", e.Name())
		}
	}
	if i.options.Namespace == nil && !i.options.SharedPort {
		for _, l := range i.Config.Listeners {
			if err := portFree(l.Address); err != nil {
				i.fail("after the stop: %v", err)
			}
		}
	}
}

// portFree says whether an address can be bound for UDP and TCP by a socket
// that shares it with nobody.
func portFree(address string) error {
	u, err := net.ListenPacket("udp", address)
	if err != nil {
		return err
	}
	u.Close()
	// TIME_WAIT of closed connections is no listener: net.Listen reuses such addresses.
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	return l.Close()
}

// Log returns all that supervisor and workers have printed.
func (i *Instance) Log() string {
	data, _ := os.ReadFile(i.LogPath)
	return string(data)
}

// LogTail returns the last n lines of the log.
func (i *Instance) LogTail(n int) string {
	lines := strings.Split(strings.TrimRight(i.Log(), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// checkLog looks for what must never be in a log.
func (i *Instance) checkLog() {
	i.t.Helper()
	if i.options.AllowPanics {
		return
	}
	log := i.Log()
	for _, bad := range []string{"panic: ", "DATA RACE", "fatal error: ", "concurrent map"} {
		if at := strings.Index(log, bad); at >= 0 {
			i.fail("the log says %q:\n%s", bad, log[at:min(len(log), at+3000)])
		}
	}
}

// WorkerPIDs returns the processes of the given generations, or of all.
func (i *Instance) WorkerPIDs(generations ...uint32) []int {
	i.t.Helper()
	var pids []int
	for _, g := range i.Status().Generations {
		if len(generations) > 0 && !slices.Contains(generations, g.ID) {
			continue
		}
		for _, w := range g.Workers {
			if w.PID > 0 {
				pids = append(pids, w.PID)
			}
		}
	}
	return pids
}

// Processes returns every live process of the instance, known to the
// supervisor or not.
func (i *Instance) Processes() []int { return processesOf(i.mark) }

// PIDFile returns what holdfast.pid in the runtime directory says.
func (i *Instance) PIDFile() (int, error) {
	data, err := os.ReadFile(i.RuntimeDir + "/holdfast.pid")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(data)))
}
