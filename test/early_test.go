package test

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/test/kit"
)

// reloads and stops are the signals of which a start must lose none to their
// default action.
var (
	harmless = []syscall.Signal{syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2}
	stops    = []syscall.Signal{syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGINT}
)

// awaitSignalSet returns as soon as a signal is in a set of /proc/PID/status:
// SigCgt, which are caught, or SigIgn, which are ignored. It does not pause
// between two looks: the test is about the earliest moment.
func awaitSignalSet(t *testing.T, pid int, set string, sig syscall.Signal) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(status), set+":")
		text, _, _ := strings.Cut(rest, "\n")
		mask, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		if mask&(1<<(sig-1)) != 0 {
			return
		}
	}
	t.Fatalf("%v is never in %s of process %d", sig, set, pid)
}

// lastCaught is a signal that the Go runtime leaves alone until a program asks for
// it; a supervisor does so last.
const lastCaught = syscall.SIGCONT

// C062: signals are caught before anything else, the configuration included:
// here it is a pipe that nothing comes out of yet.
func TestSignalsAreCaughtBeforeTheConfigurationIsRead(t *testing.T) {
	for _, sig := range append(append([]syscall.Signal(nil), harmless...), stops...) {
		t.Run(sig.String(), func(t *testing.T) {
			in := kit.Prepare(t, kit.Options{Config: kit.Config{Workers: 1}})
			content, err := os.ReadFile(in.ConfigPath)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(in.ConfigPath); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Mkfifo(in.ConfigPath, 0o600); err != nil {
				t.Fatal(err)
			}
			in.Launch()
			awaitSignalSet(t, in.PID(), "SigCgt", lastCaught)
			in.Signal(sig)
			pipe, err := os.OpenFile(in.ConfigPath, os.O_WRONLY, 0) // waits for the reader
			if err != nil {
				t.Fatal(err)
			}
			if _, err := pipe.Write(content); err != nil {
				t.Fatal(err)
			}
			// What is read again finds a file.
			if err := os.Remove(in.ConfigPath); err != nil {
				t.Fatal(err)
			}
			in.WriteRaw(string(content))
			pipe.Close()
			settle(t, in, sig)
		})
	}
}

// settle checks what became of a supervisor that got a signal early: it serves,
// or it has stopped in order.
func settle(t *testing.T, in *kit.Instance, sig syscall.Signal) {
	t.Helper()
	for _, stop := range stops {
		if sig == stop {
			if code := in.AwaitExit(15 * time.Second); code != 0 {
				t.Errorf("exit code %d after %v:\n%s", code, sig, in.LogTail(10))
			}
			return
		}
	}
	in.AwaitReady()
	whoami(t, dial(t, in.Client()))
}

// C062: from the moment on at which a signal is caught none is lost to its
// default action, whatever the start is at.
func TestEarlySignalsDoNotKill(t *testing.T) {
	for _, sig := range append(append([]syscall.Signal(nil), harmless...), stops...) {
		for i := range kit.Scale(2, 20) {
			t.Run(fmt.Sprintf("%v/%d", sig, i), func(t *testing.T) {
				in := kit.Prepare(t, kit.Options{Config: kit.Config{Workers: 1}})
				in.Launch()
				awaitSignalSet(t, in.PID(), "SigCgt", lastCaught)
				in.Signal(sig)
				settle(t, in, sig)
			})
		}
	}
}

// C062: with HUP ignored by who starts it, as docs/operations.md shows, it
// never ends a supervisor, not even before its first line, and reloads it later
// all the same.
func TestIgnoredHangupIsCaughtLater(t *testing.T) {
	const ignore = "--ignore-signal=HUP"
	if err := exec.Command("env", ignore, "true").Run(); err != nil {
		t.Skipf("env cannot ignore signals here: %v", err)
	}
	in := kit.Prepare(t, kit.Options{Config: kit.Config{Workers: 1}, Prefix: []string{"env", ignore}})
	in.Launch()
	awaitSignalSet(t, in.PID(), "SigIgn", syscall.SIGHUP) // in env, before it becomes the supervisor
	in.HUP()
	in.AwaitReady()
	before := in.Current()
	in.HUP()
	in.AwaitGeneration(before + 1)
}
