package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/supervisor"
)

func TestWrongUsageIsTwo(t *testing.T) {
	for _, args := range [][]string{
		{"nonsense"},
		{"completion", "nosh"},
		{"run", "extra"},
		{"status", "--no-such-flag"},
		{"check"},
		{"drain"},
		{"conns", "close"},
		{"status", "--name", "../x"},
		{"demo", "--connections", "0"},
		{"drain", "--generation", "x"},
	} {
		code, b := call(t, args...)
		if code != exitUsage {
			t.Errorf("holdfast %s: exit code %d", strings.Join(args, " "), code)
		}
		oneReason(t, b)
	}
}

func TestHelpAndVersionAreZero(t *testing.T) {
	for _, args := range [][]string{{}, {"help"}, {"reload", "--help"}, {"version"}, {"version", "--json"}, {"completion", "bash"}, {"completion", "zsh"}} {
		code, b := call(t, args...)
		if code != exitDone || b.out.Len() == 0 || b.err.Len() != 0 {
			t.Errorf("holdfast %s: exit code %d, output %q, %q", strings.Join(args, " "), code, b.out.String(), b.err.String())
		}
	}
}

func TestInvalidConfigurationIsThreeWithEveryFaultAtItsPlace(t *testing.T) {
	path := write(t, "bad.yaml", "listeners:\n  - name: a\n    address: \"127.0.0.1:99999\"\n    shade: red\n")
	code, b := call(t, "check", "--config", path)
	if code != exitConfig {
		t.Errorf("exit code %d", code)
	}
	if n := strings.Count(b.err.String(), path+":"); n < 2 {
		t.Errorf("%d faults are named: %s", n, b.err.String())
	}
	dir := shortDir(t)
	code, _ = call(t, "run", "--config", path, "--runtime-dir", filepath.Join(dir, "run"), "--state-dir", filepath.Join(dir, "state"))
	if code != exitConfig {
		t.Errorf("run: exit code %d", code)
	}
}

func TestValidConfigurationIsZeroAndChangesNothing(t *testing.T) {
	path := write(t, "good.yaml", "listeners:\n  - name: a\n    address: \"127.0.0.1:8443\"\n    tls: {self_signed: true}\nroutes:\n  - path: /\n    respond: {}\n")
	code, b := call(t, "check", "--config", path)
	if code != exitDone {
		t.Errorf("exit code %d: %s", code, b.err.String())
	}
	if want := path + ": valid (1 listener, 1 route)\n"; b.out.String() != want {
		t.Errorf("output %q, expected %q", b.out.String(), want)
	}
	if files, err := os.ReadDir(filepath.Dir(path)); err != nil || len(files) != 1 {
		t.Errorf("check left %d files, %v", len(files), err)
	}
}

func TestNoSupervisorIsFour(t *testing.T) {
	dir := shortDir(t)
	for _, args := range [][]string{{"reload"}, {"status"}, {"conns"}, {"conns", "close", "1.2.3"}, {"drain", "--generation", "1"}, {"stop"}, {"check-segment"}} {
		code, b := call(t, append(args, "--runtime-dir", dir)...)
		if code != exitNoSupervisor {
			t.Errorf("holdfast %s: exit code %d", args[0], code)
		}
		oneReason(t, b, "no supervisor is running", dir)
	}
}

func TestRefusalsHaveTheCodeOfTheirKind(t *testing.T) {
	for code, want := range map[string]int{"invalid_config": exitConfig, "failed": exitFailed, "busy": exitFailed, "timeout": exitTimeout, "usage": exitUsage} {
		s := fakeAdmin(t)
		s.handle("POST /v1/reload", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			_ = json.NewEncoder(w).Encode(map[string]string{"error": "the reason", "code": code})
		})
		got, b := call(t, "reload", "--runtime-dir", s.dir)
		if got != want {
			t.Errorf("%s: exit code %d, expected %d", code, got, want)
		}
		oneReason(t, b, "the reason")
	}
}

// A worker that is not ready in time fails its generation; nothing that the
// user waited for has timed out.
func TestALimitInsideIsAFailure(t *testing.T) {
	for _, inside := range []error{supervisor.ErrTimeout, context.DeadlineExceeded} {
		if got := exitCode(fmt.Errorf("no generation could be started: %w", inside)); got != exitFailed {
			t.Errorf("%v: exit code %d", inside, got)
		}
	}
}

func TestWaitingTooLongIsFive(t *testing.T) {
	s := fakeAdmin(t)
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	s.handle("POST /v1/reload", func(http.ResponseWriter, *http.Request) { <-over })
	start := time.Now()
	code, b := call(t, "reload", "--timeout", "50ms", "--runtime-dir", s.dir)
	if code != exitTimeout || time.Since(start) > 5*time.Second {
		t.Errorf("exit code %d after %s", code, time.Since(start))
	}
	oneReason(t, b, "50ms")
}
