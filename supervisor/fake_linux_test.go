package supervisor

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sys/unix"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
	"github.com/holdfast-quic/holdfast/shm"
)

// rig is a supervisor over fake workers.
type rig struct {
	t      *testing.T
	s      *Supervisor
	opt    Options
	done   chan error
	before *rig // over the processes of which this one is as well
	sigs   chan os.Signal
	http   *http.Client

	mu          sync.Mutex
	spec        Spec
	loadErr     error
	loads       int
	script      script
	workers     []*fakeWorker
	nextPID     int
	binds       atomic.Int64
	checks      []*fakeCheck
	checker     func(c *fakeCheck)     // what new programs do; nil: they accept
	execute     func(img *image) error // what becomes of an exec; nil: it works
	verifyLimit time.Duration
	memory      atomic.Int64 // limit of the control group; 0 = none
}

var smallGeometry = shm.Geometry{Slots: 16, TableEntries: 1024, Lanes: 8, LaneBytes: 1 << 16}

// testLook is short, and longer than what a busy machine holds up a goroutine.
const testLook = 100 * time.Millisecond

// inheritMu guards the environment variable by which lifeline.Inherit finds
// its descriptor.
var inheritMu sync.Mutex

func newRig(t *testing.T, adjust func(r *rig)) *rig {
	t.Helper()
	// Unix socket paths are short; t.TempDir has the test's name in it.
	dir, err := os.MkdirTemp("", "hf")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	r := &rig{t: t, done: make(chan error, 1), sigs: make(chan os.Signal, 64), nextPID: 1 << 24}
	r.spec = Spec{
		ConfigPath: "test.yaml", ConfigHash: "sha256:1", Payload: []byte("{}"), Workers: 2, Geometry: smallGeometry,
		Listeners:     []ListenerSpec{{Name: "public", Address: "127.0.0.1:0", QUIC: true, TCP: true}},
		SocketBuffers: SocketBuffers{Receive: 1 << 16, Send: 1 << 16},
	}
	r.opt = Options{
		RuntimeDir: filepath.Join(dir, "run"), StateDir: filepath.Join(dir, "state"), Version: "test", BuildID: "id",
		Load: r.load, Log: zaptest.NewLogger(t, zaptest.Level(zap.InfoLevel)), Signals: r.sigs,
	}
	e := realEnv()
	realBind := e.bind
	e.start = r.start
	e.startCheck = r.startCheck
	e.killGroup = r.killGroup
	e.bind = func(network, address string, o socketOptions) (*os.File, string, error) {
		r.binds.Add(1)
		if host, port, err := net.SplitHostPort(address); err == nil && port == "0" {
			address = net.JoinHostPort(host, quietPort(host))
		}
		return realBind(network, address, o)
	}
	e.memory = func() (int64, string) { return r.memory.Load(), "memory.max" }
	e.look = testLook
	e.settle = testLook
	e.find, e.startTime, e.workerOf = r.find, r.startTime, func(pid int, _ string) bool { return r.startTime(pid) != 0 }
	// All of them are this process.
	e.sender = func(*lifeline.Conn) (lifeline.Credentials, bool) { return lifeline.Credentials{}, false }
	if adjust != nil {
		adjust(r)
	}
	o, err := r.opt.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if r.verifyLimit > 0 {
		e.verify = r.verifyLimit
	}
	r.s = newSupervisor(o, e)
	r.s.execTo = r.exec
	r.http = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(r.opt.RuntimeDir, adminName))
	}}}
	return r
}

// quietPort returns a port that is free for UDP and TCP, outside of the range
// that the kernel takes the ports of clients from: one of those, which it would
// choose by itself for UDP, may be taken for TCP.
func quietPort(host string) string {
	for range 100 {
		port := strconv.Itoa(10000 + rand.IntN(22000))
		if l, err := net.Listen("tcp", net.JoinHostPort(host, port)); err == nil {
			l.Close()
			return port
		}
	}
	return "0"
}

func (r *rig) load() (*Spec, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.loads++
	if r.loadErr != nil {
		return nil, r.loadErr
	}
	spec := r.spec
	return &spec, nil
}

func (r *rig) start(c command, end *os.File) (process, error) {
	conn, err := inherit(end)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nextPID++
	f := &fakeWorker{pid: r.nextPID, began: uint64(r.nextPID) + 1000, conn: conn, ended: make(chan struct{})}
	r.workers = append(r.workers, f)
	f.command = c
	sc := r.script
	go f.run(&sc)
	return f, nil
}

// inherit opens a descriptor as a worker does that was started with it.
func inherit(end *os.File) (*lifeline.Conn, error) {
	raw, err := end.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd int
	if err := raw.Control(func(n uintptr) { fd, err = unix.FcntlInt(n, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return nil, err
	}
	if err != nil {
		return nil, err
	}
	inheritMu.Lock()
	defer inheritMu.Unlock()
	os.Setenv(lifeline.Env, strconv.Itoa(fd))
	return lifeline.Inherit()
}

// with changes what the rig gives to generations from now on.
func (r *rig) with(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

// up runs the supervisor until its first generation is current, and stops it
// at the end of the test.
func newRunning(t *testing.T, adjust func(r *rig)) *rig {
	t.Helper()
	r := newRig(t, adjust)
	r.run()
	r.waitFor("first generation", func(st *Status) bool { return r.current(st) == 1 })
	return r
}

func (r *rig) run() {
	go func() { r.done <- r.s.Run(context.Background()) }()
	r.t.Cleanup(func() {
		r.s.post(stopEvent{stopFast})
		select {
		case <-r.s.done:
		case <-time.After(10 * time.Second):
			r.t.Error("supervisor does not stop")
		}
		r.http.CloseIdleConnections()
	})
}

func (r *rig) wait() error {
	r.t.Helper()
	select {
	case err := <-r.done:
		return err
	case <-time.After(10 * time.Second):
		r.t.Fatal("supervisor does not end")
		return nil
	}
}

// alive returns the fake processes of a generation, 0 for all.
func (r *rig) alive(generation uint32) []*fakeWorker {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*fakeWorker
	for _, f := range r.workers {
		f.mu.Lock()
		if f.end == nil && (generation == 0 || f.welcome != nil && f.welcome.Generation == generation) {
			out = append(out, f)
		}
		f.mu.Unlock()
	}
	return out
}

// waitFor polls the status until it holds.
func (r *rig) waitFor(what string, ok func(st *Status) bool) *Status {
	r.t.Helper()
	var last []byte
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		var st Status
		if code, body := r.call(http.MethodGet, "/v1/status", nil); code == http.StatusOK {
			last = body
			if err := json.Unmarshal(body, &st); err != nil {
				r.t.Fatalf("status: %v", err)
			}
			if ok(&st) {
				return &st
			}
		}
		time.Sleep(2 * time.Millisecond)
	}
	r.t.Fatalf("never: %s; last status %s", what, last)
	return nil
}

func (r *rig) current(st *Status) shm.Generation {
	for _, g := range st.Generations {
		if g.State == GenerationCurrent {
			return g.ID
		}
	}
	return 0
}

// call makes one request to the admin API; 0 means that there was no answer.
func (r *rig) call(method, path string, in any) (int, []byte) {
	var body io.Reader
	if in != nil {
		wire, _ := json.Marshal(in)
		body = bytes.NewReader(wire)
	}
	req, err := http.NewRequest(method, "http://admin"+path, body)
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := r.http.Do(req)
	if err != nil {
		return 0, nil
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil
	}
	return resp.StatusCode, out
}

// reload asks for one and returns its answer.
func (r *rig) reload() (code int, reason Error) {
	code, body := r.call(http.MethodPost, "/v1/reload", nil)
	_ = json.Unmarshal(body, &reason)
	return code, reason
}

func (r *rig) mustReload() {
	r.t.Helper()
	if code, reason := r.reload(); code != http.StatusOK {
		r.t.Fatalf("reload: %d %+v", code, reason)
	}
}
