package supervisor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
	"github.com/holdfast-quic/holdfast/packetqueue"
	"github.com/holdfast-quic/holdfast/shm"
)

const childEnv = "HOLDFAST_TEST_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(childEnv) {
	case "":
		os.Exit(m.Run())
	case "report":
		// What a worker finds, as one message on its lifeline. What it opens
		// itself is close-on-exec; what it inherits is not.
		var fds []string
		for fd := range 1024 {
			if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
				fds = append(fds, fmt.Sprint(fd))
			}
		}
		conn, err := lifeline.Inherit()
		if err != nil {
			os.Exit(9)
		}
		var r unix.Rlimit
		_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &r)
		stdin, _ := os.Readlink("/proc/self/fd/0")
		_ = conn.Send(&lifeline.Message{Kind: lifeline.KindFailed, Failed: &lifeline.Failed{
			Reason: fmt.Sprintf("%s|%s|%d/%d|%s", strings.Join(fds, " "), stdin, r.Cur, r.Max, strings.Join(os.Environ(), " ")),
		}})
		os.Exit(5)
	case "hang":
		signal.Ignore(syscall.SIGTERM)
		time.Sleep(time.Minute)
	case "zombie":
		os.Exit(0)
	}
}

func startTestChild(t *testing.T, what string, noFile uint64) (*lifeline.Conn, process) {
	t.Helper()
	conn, end, err := lifeline.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer end.Close()
	t.Cleanup(func() { conn.Close() })
	t.Setenv(childEnv, what)
	t.Setenv("NOTIFY_SOCKET", "/run/systemd/notify")
	t.Setenv("WATCHDOG_USEC", "1")
	t.Setenv("LISTEN_FDS", "3")
	img, err := ownImage()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(img.release)
	c := workerCommand(img, &Spec{Command: []string{"/proc/self/exe"}, NoFile: noFile})
	p, err := startChild(c, end)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return conn, p
}

func TestWhatAWorkerInherits(t *testing.T) { // C068, C140
	if f, err := os.Open("/etc/passwd"); err == nil { // something to leak
		defer f.Close()
	}
	if err := keepDescriptors(); err != nil { // of whoever started the test
		t.Skip(err)
	}
	for _, noFile := range []uint64{0, 1234} {
		conn, p := startTestChild(t, "report", noFile)
		m, _, err := conn.Recv()
		if err != nil {
			t.Fatal(err)
		}
		report := strings.SplitN(m.Failed.Reason, "|", 4)
		if report[0] != "0 1 2 3" || report[1] != os.DevNull {
			t.Errorf("descriptors %s, standard input %s", report[0], report[1])
		}
		var own unix.Rlimit
		_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &own)
		want := fmt.Sprintf("%d/%d", own.Max, own.Max)
		if noFile > 0 && !strings.HasSuffix(report[2], "/1234") {
			t.Errorf("limit %s, not 1234", report[2])
		} else if noFile == 0 && report[2] != want {
			t.Errorf("limit %s, not %s", report[2], want)
		}
		for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "LISTEN_FDS", lifeline.Env} {
			if strings.Contains(report[3], name+"=") {
				t.Errorf("the worker's environment has %s", name)
			}
		}
		p.Ended()
		if end := p.Reap(); end.status != 5 || end.String() != "exit status 5" {
			t.Errorf("end %v", end)
		}
	}
}

func TestKilledChild(t *testing.T) {
	_, p := startTestChild(t, "hang", 0)
	if pgid, err := unix.Getpgid(p.PID()); err != nil || pgid != p.PID() {
		t.Errorf("process group %d %v", pgid, err)
	}
	if err := p.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.Ended()
	if end := p.Reap(); end.signal != syscall.SIGKILL || end.clean() || !strings.Contains(end.String(), "signal 9") {
		t.Errorf("end %v", end)
	}
	if err := p.Signal(syscall.SIGKILL); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal to a reaped child: %v", err)
	}
}

func TestReaperOfPID1(t *testing.T) { // C054
	_, p := startTestChild(t, "zombie", 0)
	p.Ended()
	seen := map[int]exit{}
	reapOthers(func(pid int, end exit) { seen[pid] = end })
	if !seen[p.PID()].clean() {
		t.Errorf("reaped %v", seen)
	}
	if end := p.Reap(); end.known {
		t.Errorf("reaped twice: %v", end)
	}
}

func TestMissingProgram(t *testing.T) {
	_, end, err := lifeline.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer end.Close()
	if _, err := startChild(command{path: "/no/such/program", name: "/no/such/program"}, end); err == nil || !strings.Contains(err.Error(), "/no/such/program") {
		t.Errorf("error %v", err)
	}
	for _, name := range []string{"/no/such/program", "no-such-program"} {
		if _, err := openCommand([]string{name}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSealedFile(t *testing.T) {
	f, err := sealedFile("test", []byte("content"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("x"), 0); err == nil {
		t.Error("a sealed file was written to")
	}
	if err := f.Truncate(0); err == nil {
		t.Error("a sealed file was cut")
	}
}

// A probe's connection pushes into the worker's queue, rings its doorbell, and
// hears what comes from the listener's port only.
func TestQueueConn(t *testing.T) {
	server, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	g := smallGeometry
	region := make([]byte, packetqueue.Size(g.Lanes, g.LaneBytes))
	if err := packetqueue.Format(region, g.Lanes, g.LaneBytes); err != nil {
		t.Fatal(err)
	}
	bell, err := packetqueue.NewDoorbell()
	if err != nil {
		t.Fatal(err)
	}
	defer bell.Close()
	consumer, err := packetqueue.OpenConsumer(region, 5)
	if err != nil {
		t.Fatal(err)
	}
	if !consumer.Arm() {
		t.Fatal("an empty queue can't be slept on")
	}
	c, err := newQueueConn(probeTarget{
		channel: 5, address: server.LocalAddr().String(), region: region, bell: bell,
		token: packetqueue.Token(probeSlot, 7), target: 7,
	}, monotonic)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := c.WriteTo([]byte("initial"), c.server); n != 7 || err != nil {
		t.Fatalf("write: %d %v", n, err)
	}
	var count [8]byte
	if _, err := bell.Read(count[:]); err != nil || count[0] != 1 {
		t.Errorf("doorbell: %v %v", count, err)
	}
	var rec packetqueue.Record
	if !consumer.Next(&rec) || string(rec.Payload) != "initial" || rec.Target != 7 || rec.Pushed == 0 {
		t.Fatalf("record %+v", rec)
	}
	stranger, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	back := &net.UDPAddr{IP: rec.Remote.Addr[:4], Port: int(rec.Remote.Port)}
	stranger.WriteTo([]byte("noise"), back)
	server.WriteTo([]byte("answer"), back)
	buf := make([]byte, 64)
	c.SetReadDeadline(time.Now().Add(5 * time.Second))
	n, from, err := c.ReadFrom(buf)
	if err != nil || string(buf[:n]) != "answer" || from.String() != server.LocalAddr().String() {
		t.Errorf("read %q from %v: %v", buf[:n], from, err)
	}
	consumer.Done()
	c.Close()
	if _, err := c.WriteTo([]byte("late"), nil); err == nil {
		t.Error("a write after Close went through")
	}
	if c.pushed.Load() != 1 || packetqueue.Pending(region) != 0 || len(packetqueue.Check(region)) != 0 {
		t.Errorf("pushed %d, pending %d", c.pushed.Load(), packetqueue.Pending(region))
	}
}

func TestProbeDecides(t *testing.T) {
	var probed []string
	failing := false
	r := newRunning(t, func(r *rig) {
		r.spec.Workers = 1
		r.spec.ProbeTimeout = 50 * time.Millisecond
		r.opt.Probe = func(ctx context.Context, target ProbeTarget) error {
			r.mu.Lock()
			probed = append(probed, target.Listener)
			fails := failing
			r.mu.Unlock()
			if fails {
				<-ctx.Done()
				return ctx.Err()
			}
			_, err := target.Conn.WriteTo([]byte("hello"), target.Addr)
			return err
		}
		r.spec.Listeners = append(r.spec.Listeners,
			ListenerSpec{Name: "tcp only", Address: "127.0.0.1:0", TCP: true}, ListenerSpec{Name: "second", Address: "127.0.0.1:0", QUIC: true})
	})
	if !slices.Equal(probed, []string{"public", "second"}) {
		t.Errorf("probed %v", probed)
	}
	r.waitFor("counted", func(st *Status) bool { return st.Counters.ProbePushed == 2 })
	r.with(func() { failing = true })
	_, reason := r.reload()
	if !strings.Contains(reason.Reason, `probe of listener "public"`) || !strings.Contains(reason.Reason, "no answer within 50ms") {
		t.Errorf("reload: %+v", reason)
	}
	st := r.waitFor("untouched", func(st *Status) bool { return len(st.Generations) == 1 })
	if r.current(st) != 1 || st.Generations[0].ID != shm.Generation(1) {
		t.Errorf("generations %+v", st.Generations)
	}
}

// The descriptor of a program is kept apart from those that the child gets,
// whatever its number is.
func TestProgramByDescriptorIsNotOverwritten(t *testing.T) {
	program, err := os.Open("/bin/true")
	if err != nil {
		t.Skip(err)
	}
	defer program.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	number, err := descriptor(program)
	if err != nil {
		t.Fatal(err)
	}
	files := make([]*os.File, number+3) // the child gets this number too
	for i := range files {
		files[i] = null
	}
	pid, err := forkExec(command{path: fmt.Sprintf("/proc/self/fd/%d", number), name: "true"}, files)
	if err != nil {
		t.Fatal(err)
	}
	var ws unix.WaitStatus
	if _, err := unix.Wait4(pid, &ws, 0, nil); err != nil || ws.ExitStatus() != 0 {
		t.Errorf("status %v, %v", ws, err)
	}
}
