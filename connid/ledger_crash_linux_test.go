package connid

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// The environment of a child that leases and is killed: where the ledger is,
// and the step of the last lease's write at which it kills itself.
const (
	envCrashPath = "CONNID_TEST_LEDGER"
	envCrashStep = "CONNID_TEST_STEP"
)

const (
	stepGranted    = "granted" // after Lease returned and the range was told
	leasesPerChild = 2
	leaseSize      = 100
)

var crashSteps = []string{stepLocked, stepCreated, stepWritten, stepSynced, stepRenamed, stepDurable, stepGranted}

func TestMain(m *testing.M) {
	if path := os.Getenv(envCrashPath); path != "" {
		leaseAndDie(path, os.Getenv(envCrashStep))
	}
	os.Exit(m.Run())
}

// leaseAndDie tells the ranges it is granted on standard output and ends by
// kill -9 at the given step of its last lease. It never returns.
func leaseAndDie(path, dieAt string) {
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	l, err := OpenLedger(path)
	if err != nil {
		fail(err)
	}
	l.now = epoch
	last := false
	l.step = func(name string) {
		if last && name == dieAt {
			fail(syscall.Kill(os.Getpid(), syscall.SIGKILL))
		}
	}
	for i := range leasesPerChild {
		last = i == leasesPerChild-1
		r, err := l.Lease(leaseSize)
		if err != nil {
			fail(err)
		}
		fmt.Println(r.From, r.To)
	}
	l.step(stepGranted)
	fail(fmt.Errorf("still alive after step %q", dieAt))
}

// crash runs one child and returns the ranges that it was granted.
func crash(t *testing.T, exe, path, step string) []Range {
	t.Helper()
	cmd := exec.CommandContext(context.Background(), exe)
	cmd.Env = append(os.Environ(), envCrashPath+"="+path, envCrashStep+"="+step, "GOMAXPROCS=1")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run() // always an error: how it ended is looked at next
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !status.Signaled() || status.Signal() != syscall.SIGKILL {
		t.Fatalf("step %q: child ended with %v, not by SIGKILL: %s", step, cmd.ProcessState, &stderr)
	}
	var ranges []Range
	for line := range strings.Lines(stdout.String()) {
		var r Range
		if _, err := fmt.Sscan(line, &r.From, &r.To); err != nil || r.Len() != leaseSize {
			t.Fatalf("step %q: child said %q", step, line)
		}
		ranges = append(ranges, r)
	}
	return ranges
}

func self(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

// TestLedgerKilledAtEachStep: whatever the step, the next process finds a good
// ledger that goes on behind all that was granted.
func TestLedgerKilledAtEachStep(t *testing.T) {
	exe := self(t)
	for _, step := range crashSteps {
		t.Run(step, func(t *testing.T) {
			l, path := createLedger(t)
			ranges := []Range{lease(t, l, leaseSize)}
			granted := crash(t, exe, path, step)
			want := leasesPerChild - 1
			if step == stepGranted {
				want = leasesPerChild
			}
			if len(granted) != want {
				t.Fatalf("child was granted %v, want %d ranges", granted, want)
			}
			ranges = append(ranges, granted...)
			ranges = append(ranges, lease(t, openLedger(t, path), leaseSize), lease(t, l, leaseSize))
			checkDisjoint(t, ranges)
		})
	}
}

// abort is crash without a process: the write stops at the step, and what is
// on disk then is left as it is.
func abort(t *testing.T, path, step string) (granted []Range) {
	t.Helper()
	type died struct{}
	defer func() {
		if p := recover(); p != (died{}) {
			t.Fatalf("step %q: recovered %v", step, p)
		}
	}()
	l := openLedger(t, path)
	granted = append(granted, lease(t, l, leaseSize))
	l.step = func(name string) {
		if name == step {
			panic(died{})
		}
	}
	granted = append(granted, lease(t, l, leaseSize))
	l.step(stepGranted)
	return granted
}

// memoryDir returns a directory in which syncing a file costs nothing, if there
// is one: what a killed process leaves is the same on every file system.
func memoryDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "connid")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// TestLedgerThousandRestarts: a thousand lives one after the other, each cut
// short, and no nonce is granted twice. Every sixteenth is a process of its own,
// ended by kill -9; to start one takes longer than all the rest.
func TestLedgerThousandRestarts(t *testing.T) {
	const restarts, processEvery = 1000, 16
	exe := self(t)
	path := filepath.Join(memoryDir(t), "nonces")
	if _, err := CreateLedger(path, ledgerKey); err != nil {
		t.Fatal(err)
	}
	var ranges []Range
	for i := range restarts {
		step := crashSteps[i%len(crashSteps)]
		if i%processEvery == 0 && !testing.Short() {
			ranges = append(ranges, crash(t, exe, path, step)...)
		} else {
			ranges = append(ranges, abort(t, path, step)...)
		}
	}
	if len(ranges) < restarts {
		t.Fatalf("%d ranges in %d lives, want at least one in each", len(ranges), restarts)
	}
	checkDisjoint(t, ranges)
}
