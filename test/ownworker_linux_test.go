package test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/holdfast-quic/holdfast/test/kit"
)

// ownConfig is a configuration for a worker of one's own.
func ownConfig(port int, protocols, extra string, command ...string) string {
	return fmt.Sprintf("listeners:\n  - {name: public, address: %q, protocols: [%s], tls: {self_signed: true}}\nworkers: 2\nworker: {command: [%s]}\n%s",
		local(port), protocols, strings.Join(command, ", "), extra)
}

// startOwn runs an instance of a worker of one's own.
func startOwn(t *testing.T, protocols, extra string, command ...string) *kit.Instance {
	t.Helper()
	port := kit.FreePort(t, "127.0.0.1")
	return kit.Start(t, kit.Options{
		Config: kit.Config{Listeners: []kit.Listener{{Name: "public", Address: local(port)}}, Workers: 2},
		Raw:    ownConfig(port, protocols, extra, command...),
	})
}

// echoBuild builds examples/echo-worker with that version.
func echoBuild(t *testing.T, version string) string {
	t.Helper()
	return kit.BuildOther(t, "../examples/echo-worker", "-ldflags", "-X main.version="+version)
}

// echo is a client of the echo worker.
type echo struct {
	conn  *quic.Conn
	count int
}

func dialEcho(ctx context.Context, address string) (*echo, error) {
	conn, err := quic.DialAddr(ctx, address, &tls.Config{
		InsecureSkipVerify: true, NextProtos: []string{"echo"},
	}, &quic.Config{MaxIdleTimeout: 20 * time.Second, KeepAlivePeriod: 5 * time.Second})
	return &echo{conn: conn}, err
}

func (e *echo) say(ctx context.Context) error {
	e.count++
	text := fmt.Sprintf("message %d", e.count)
	stream, err := e.conn.OpenStreamSync(ctx)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(stream, text); err != nil {
		return err
	}
	stream.Close()
	if got, err := io.ReadAll(stream); err != nil || string(got) != text {
		return fmt.Errorf("echo of %q: %q, %w", text, got, err)
	}
	return nil
}

// version returns the version of the echo worker that new connections get.
func version(t *testing.T, address string) string {
	t.Helper()
	conn, err := quic.DialAddr(t.Context(), address, &tls.Config{
		InsecureSkipVerify: true, NextProtos: []string{"echo/1", "echo/2"},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.CloseWithError(0, "") }()
	_, v, _ := strings.Cut(conn.ConnectionState().TLS.NegotiatedProtocol, "/")
	return v
}

// echoes keep connections busy. What fails is counted.
type echoes struct {
	stop   context.CancelFunc
	wg     sync.WaitGroup
	said   atomic.Int64
	failed atomic.Int64
	first  sync.Once
	cause  error
}

func startEchoes(t *testing.T, address string, n int, each time.Duration) *echoes {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	e := &echoes{stop: stop}
	t.Cleanup(func() { stop(); e.wg.Wait() })
	for range n {
		c, err := dialEcho(ctx, address)
		if err != nil {
			t.Fatal(err)
		}
		e.wg.Go(func() {
			defer func() { _ = c.conn.CloseWithError(0, "") }()
			tick := time.NewTicker(each)
			defer tick.Stop()
			for {
				asked, cancel := context.WithTimeout(context.Background(), 20*time.Second)
				err := c.say(asked)
				cancel()
				if err != nil {
					e.failed.Add(1)
					e.first.Do(func() { e.cause = err })
					return
				}
				e.said.Add(1)
				select {
				case <-tick.C:
				case <-ctx.Done():
					return
				}
			}
		})
	}
	return e
}

// mustBeClean stops them.
func (e *echoes) mustBeClean(t *testing.T) {
	t.Helper()
	e.stop()
	e.wg.Wait()
	t.Logf("%d echoes, %d connections failed", e.said.Load(), e.failed.Load())
	if e.failed.Load() != 0 || e.said.Load() == 0 {
		t.Errorf("%d connections failed: %v", e.failed.Load(), e.cause)
	}
}

// A worker of one's own with a private protocol is reloaded, is replaced when
// it is killed, and is upgraded alone, by two different builds in turn, while
// the supervisor stays what it is.
func TestEchoWorker(t *testing.T) {
	program := filepath.Join(t.TempDir(), "echo-worker")
	kit.Install(t, echoBuild(t, "1"), program)
	in := startOwn(t, "quic", "upgrade: {probation: 1s}\n", program)
	pid, build := in.PID(), in.Status().BuildID
	clients := startEchoes(t, in.Addr(), kit.Scale(50, 1000), 500*time.Millisecond)
	in.Reload()
	if v := version(t, in.Addr()); v != "1" {
		t.Errorf("version %s after a reload", v)
	}

	// What lies on disk is only of interest to an upgrade.
	kit.Install(t, echoBuild(t, "2"), program)
	in.Reload()
	if v := version(t, in.Addr()); v != "1" {
		t.Errorf("version %s after a reload with another file on disk", v)
	}
	fds := 0
	kit.Every(kit.Scale(500*time.Millisecond, 3*time.Second), kit.Scale(10*time.Second, 60*time.Second), func(i int) bool {
		want := fmt.Sprint(2 - i%2)
		kit.Install(t, echoBuild(t, want), program)
		upgrade(t, in)
		if v := version(t, in.Addr()); v != want {
			t.Errorf("upgrade %d: version %s, expected %s", i, v, want)
		}
		if i == 1 {
			fds = kit.Descriptors(pid)
		}
		return i < 19 && !t.Failed()
	})
	st := in.Status()
	t.Logf("%d upgrades", st.Counter("upgrades_ok"))
	if st.PID != pid || st.BuildID != build || st.Counter("upgrades_failed") != 0 || st.Counter("upgrades_ok") < uint64(kit.Scale(5, 20)) {
		t.Errorf("supervisor %d of build %s, once %d of %s: %v", st.PID, st.BuildID, pid, build, st.Counters)
	}
	// A crash is answered by the program of the generation.
	serving := version(t, in.Addr())
	kit.Install(t, echoBuild(t, map[string]string{"1": "2", "2": "1"}[serving]), program)
	clients.mustBeClean(t)
	if last := awaitOnlyCurrent(t, in, 20*time.Second); last.PID == pid && kit.Descriptors(pid) > fds+2 {
		t.Errorf("the supervisor has %d descriptors, %d after the second upgrade", kit.Descriptors(pid), fds)
	}
	for _, victim := range in.WorkerPIDs() {
		if err := kit.Signal(victim, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	in.AwaitStatus(20*time.Second, "two workers again", func(s kit.Status) error {
		g, _ := s.Current()
		for _, w := range g.Workers {
			if w.Restarts == 0 || w.Phase != "serving" {
				return fmt.Errorf("worker %+v", w)
			}
		}
		return nil
	})
	if v := version(t, in.Addr()); v != serving {
		t.Errorf("version %s after a crash, expected %s", v, serving)
	}
}

// What another time speaks is refused, says so, and changes nothing.
func TestWorkersOfAnotherTime(t *testing.T) {
	echoProgram := echoBuild(t, "1")
	future := kit.BuildOther(t, "./testdata/futureworker")
	in := startOwn(t, "quic", "start: {tries: 1, ready_timeout: 5s}\n", echoProgram)
	clients := startEchoes(t, in.Addr(), 5, 200*time.Millisecond)
	for kind, reason := range map[string]string{
		"protocol":  "98 to 99",
		"abi-major": "ABI",
	} {
		in.WriteRaw(ownConfig(in.Port(), "quic", "start: {tries: 1, ready_timeout: 5s}\n", future, kind))
		r := in.CLI("reload")
		if r.Code != 1 || !strings.Contains(r.Stderr, reason) || strings.Count(strings.TrimSpace(r.Stderr), "\n") != 0 {
			t.Errorf("%s: exit code %d: %s", kind, r.Code, r.Stderr)
		}
		t.Logf("%s: %s", kind, strings.TrimSpace(r.Stderr))
		if in.Current() != 1 {
			t.Fatalf("%s: generation %d is current", kind, in.Current())
		}
		log, err := os.ReadFile(in.LogPath)
		if err != nil || !strings.Contains(string(log), "future worker: refused:") {
			t.Errorf("%s: it was not told: %v", kind, err)
		}
	}
	// One that can speak as this version does is welcome, whatever more it can.
	in.WriteRaw(ownConfig(in.Port(), "quic", "start: {tries: 1, ready_timeout: 5s}\n", future, "newer-hello"))
	if r := in.CLI("reload"); r.Code != 1 {
		t.Errorf("exit code %d: %s", r.Code, r.Stderr)
	}
	if log, err := os.ReadFile(in.LogPath); err != nil || !strings.Contains(string(log), "future worker: answered with welcome") {
		t.Errorf("a newer one was not welcome: %v", err)
	}
	clients.mustBeClean(t)
}

// C144: what a worker starts has descriptors 0, 1 and 2 alone, and holds no
// port over the end of the instance: the next one starts at once.
func TestHookHoldsNothing(t *testing.T) {
	hooks := publicDir(t, 0)
	in := startOwn(t, "quic, tcp", "", kit.BuildOther(t, "./testdata/hookworker"), hooks)
	in.Reload() // one that was started while others were there
	names, err := os.ReadDir(hooks)
	if err != nil || len(names) != 4 {
		t.Fatalf("%d hooks, %v", len(names), err)
	}
	var pids []int
	for _, name := range names {
		var pid int
		if _, err := fmt.Sscan(name.Name(), &pid); err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
		t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
		open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range open {
			if fd.Name() > "2" {
				target, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, fd.Name()))
				t.Errorf("hook %d has descriptor %s: %s", pid, fd.Name(), target)
			}
		}
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil || strings.Contains(string(environ), "HOLDFAST_LIFELINE") {
			t.Errorf("hook %d was told of a lifeline: %v", pid, err)
		}
	}
	in.Stop()
	udp, tcp := kit.BoundSockets(in.Port())
	if len(udp)+len(tcp) != 0 {
		t.Errorf("after the stop %v and %v are bound", udp, tcp)
	}
	begin := time.Now()
	in.Launch()
	in.AwaitReady()
	if took := time.Since(begin); took > 3*time.Second {
		t.Errorf("the next start took %v", took)
	}
	for _, pid := range pids {
		if !kit.Alive(pid) {
			t.Errorf("hook %d has ended", pid)
		}
	}
}
