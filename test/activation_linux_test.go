package test

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-quic/holdfast/test/kit"
)

// passedPair makes a UDP and a TCP socket on one port as a socket unit does.
func passedPair(t *testing.T, reusePort bool) (udp, tcp *os.File, address string) {
	t.Helper()
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		if !reusePort {
			return nil
		}
		var err error
		if controlErr := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		}); controlErr != nil {
			return controlErr
		}
		return err
	}}
	config.SetMultipathTCP(false) // as a socket unit does by default
	pc, err := config.ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer pc.Close()
	l, err := config.Listen(t.Context(), "tcp", pc.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if udp, err = pc.(*net.UDPConn).File(); err != nil {
		t.Fatal(err)
	}
	if tcp, err = l.(*net.TCPListener).File(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { udp.Close(); tcp.Close() })
	return udp, tcp, pc.LocalAddr().String()
}

// inode is that of a socket.
func inode(t *testing.T, f *os.File) string {
	t.Helper()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(info.Sys().(*syscall.Stat_t).Ino)
}

// C112: sockets of a socket unit with four workers: every handshake comes
// through, over reloads too; the passed sockets are used and not bound again.
// Whether further sockets can be bound beside the UDP one, or all workers read
// that one, is the kernel's business.
func TestSocketActivation(t *testing.T) {
	for _, tt := range []struct {
		name      string
		reusePort bool
		stranger  bool // bound by another user
		sockets   int
	}{
		{"with ReusePort", true, false, 4},
		{"without ReusePort", false, false, 4},
		{"bound by another user", true, true, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var udp, tcp *os.File
			var address string
			if tt.stranger {
				if os.Geteuid() != 0 {
					t.Skip("sockets of another user need root")
				}
				asUser(t, 65534, func() { udp, tcp, address = passedPair(t, tt.reusePort) })
			} else {
				udp, tcp, address = passedPair(t, tt.reusePort)
			}
			in := kit.Start(t, kit.Options{
				Config: kit.Config{Workers: 4, Listeners: []kit.Listener{{Name: "public", Address: address}}},
				Env:    kit.Passing("public", "public"), Files: []*os.File{udp, tcp}, Prefix: kit.OwnPID, SharedPort: true,
			})
			check := func() {
				t.Helper()
				udps, tcps := kit.BoundSockets(in.Port())
				if len(udps) != tt.sockets || !slices.Contains(udps, inode(t, udp)) {
					t.Errorf("UDP sockets %v, passed was %s", udps, inode(t, udp))
				}
				if len(tcps) != 1 || tcps[0] != inode(t, tcp) {
					t.Errorf("TCP sockets %v, passed was %s", tcps, inode(t, tcp))
				}
			}
			check()
			if said := strings.Contains(in.Log(), "all workers read that one"); said != (tt.sockets == 1) {
				t.Errorf("that one socket has to do for all is said: %v", said)
			}
			f := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 20, Interval: 100 * time.Millisecond})
			h := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 10, Interval: 100 * time.Millisecond, TCP: "h2"})
			owners := map[int]int{}
			for round := range 4 {
				for owner, n := range handshakes(t, in, 50) {
					owners[owner] += n
				}
				if round == 1 || round == 2 {
					reload(t, in)
				}
			}
			t.Logf("connections by worker: %v", owners)
			f.Stop().MustBeClean(t)
			h.Stop().MustBeClean(t)
			check()
		})
	}
}

// handshakes connects n clients at once and returns how many each worker got.
func handshakes(t *testing.T, in *kit.Instance, n int) map[int]int {
	t.Helper()
	owners := map[int]int{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			c, err := kit.Dial(ctx, in.Client())
			if err != nil {
				t.Errorf("connect: %v", err)
				return
			}
			defer c.Close()
			w, err := c.Whoami(ctx)
			if err != nil {
				t.Errorf("whoami: %v", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			owners[w.PID]++
		})
	}
	wg.Wait()
	return owners
}

// asUser runs fn in a thread whose files and sockets belong to the user.
func asUser(t *testing.T, uid int, fn func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_, _, _ = unix.RawSyscall(unix.SYS_SETFSUID, uintptr(uid), 0, 0)
	defer func() { _, _, _ = unix.RawSyscall(unix.SYS_SETFSUID, 0, 0, 0) }()
	fn()
}

// C140: sockets that were passed to another process, such as a container's
// init, are not taken, and the log says what to do; with the switch they are.
func TestSocketsPassedToAnotherProcess(t *testing.T) {
	udp, tcp, address := passedPair(t, true)
	o := kit.Options{
		Config: kit.Config{Listeners: []kit.Listener{{Name: "public", Address: address}}},
		Env:    append(kit.Passing("public", "public"), "LISTEN_PID=1"), Files: []*os.File{udp, tcp}, SharedPort: true,
	}
	in := kit.Prepare(t, o)
	in.Launch()
	if code := in.AwaitExit(20 * time.Second); code != 1 {
		t.Errorf("exit code %d", code)
	}
	if log := in.Log(); !containsAll(log, `LISTEN_PID is \"1\"`, "--any-listen-pid") {
		t.Errorf("log: %s", log)
	}
	o.Args = []string{"--any-listen-pid"}
	in = kit.Start(t, o)
	if udps, _ := kit.BoundSockets(in.Port()); !slices.Contains(udps, inode(t, udp)) {
		t.Errorf("UDP sockets %v", udps)
	}
	whoami(t, dial(t, in.Client()))
}

// What is passed and belongs to nobody is closed and said so; what is no
// socket of the Internet too.
func TestUnknownPassedSockets(t *testing.T) {
	udp, tcp, _ := passedPair(t, true)
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	in := kit.Start(t, kit.Options{
		Env: kit.Passing("stranger", "stranger", "paper"), Files: []*os.File{udp, tcp, file}, Prefix: kit.OwnPID,
	})
	ours := []string{"socket:[" + inode(t, udp) + "]", "socket:[" + inode(t, tcp) + "]", file.Name()}
	for _, target := range kit.DescriptorTargets(in.PID()) {
		if slices.Contains(ours, target) {
			t.Errorf("%s is open", target)
		}
	}
	if log := in.Log(); strings.Count(log, "belongs to no listener") != 2 || !containsAll(log, "stranger", "paper") {
		t.Errorf("log: %s", log)
	}
}

// C138: a descriptor store keeps the listening sockets over the end of the
// whole service, with what clients have sent in between. It holds what the
// service listens on, and nothing of what it does no more.
func TestDescriptorStore(t *testing.T) {
	m := kit.NewManager(t)
	in := kit.Prepare(t, kit.Options{Env: m.Env(0, 64), Prefix: kit.OwnPID, SharedPort: true})
	in.Launch()
	in.AwaitReady()
	names := func() []string {
		var out []string
		for _, s := range m.Store() {
			out = append(out, s.Name)
		}
		slices.Sort(out)
		return out
	}
	holds := func(what string, want ...string) {
		t.Helper()
		kit.Eventually(t, 5*time.Second, what, func() error {
			if got := names(); !slices.Equal(got, want) {
				return fmt.Errorf("the store holds %q", got)
			}
			return nil
		})
	}
	one := []string{"segment", "socket.0.tcp.0", "socket.0.udp.0", "socket.0.udp.1"}
	holds("sockets and segment", one...)

	second := kit.Listener{Name: "second", Address: fmt.Sprintf("127.0.0.1:%d", kit.FreePort(t, "127.0.0.1"))}
	in.WriteConfig(in.Config.WithListener(second))
	reload(t, in)
	holds("the second listener", append(slices.Clone(one), "socket.1.tcp.0", "socket.1.udp.0", "socket.1.udp.1")...)
	in.WriteConfig(in.Config)
	reload(t, in)
	awaitOnlyCurrent(t, in, 10*time.Second)
	holds("only the first listener", one...)

	before, _ := kit.BoundSockets(in.Port())
	in.Stop()
	holds("what it held", one...)

	// While nothing runs, clients knock.
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
			defer cancel()
			c, err := kit.Dial(ctx, in.Client())
			if err != nil {
				t.Errorf("connect over the restart: %v", err)
				return
			}
			c.Close()
		})
	}
	time.Sleep(300 * time.Millisecond) // their first packets are on their way
	var files []*os.File
	var passed []string
	for _, s := range m.Store() {
		files, passed = append(files, s.File), append(passed, s.Name)
	}
	in.Relaunch(files, kit.Passing(passed...))
	after, _ := kit.BoundSockets(in.Port())
	slices.Sort(before)
	slices.Sort(after)
	if !slices.Equal(before, after) {
		t.Errorf("UDP sockets %v, before the restart %v", after, before)
	}
	wg.Wait()
	holds("the same names", one...)
	for _, s := range m.Store() {
		if s.Name == "segment" && kit.SameFile(s.File, files[slices.Index(passed, "segment")]) {
			t.Error("the store has the segment of the run before")
		}
	}
}

// C051, C112: a supervisor that comes after a crash gets the passed sockets
// twice, from the manager and from the workers, and knows them for the same; one
// whose workers died too gets them out of the store.
func TestPassedSocketsOverACrash(t *testing.T) {
	udp, tcp, address := passedPair(t, true)
	m := kit.NewManager(t)
	in := kit.Start(t, kit.Options{
		Config: kit.Config{Listeners: []kit.Listener{{Name: "public", Address: address}}},
		Env:    append(m.Env(0, 64), kit.Passing("public", "public")...), Files: []*os.File{udp, tcp},
		Prefix: kit.OwnPID, SharedPort: true,
	})
	stored := func(want ...string) {
		t.Helper()
		kit.Eventually(t, 5*time.Second, "the store", func() error {
			var got []string
			for _, s := range m.Store() {
				got = append(got, s.Name)
			}
			if slices.Sort(got); !slices.Equal(got, want) {
				return fmt.Errorf("it holds %q", got)
			}
			return nil
		})
	}
	// The first UDP socket and the TCP one are the unit's.
	stored("segment", "socket.0.udp.1")
	again := func() {
		t.Helper()
		files, names := []*os.File{udp, tcp}, []string{"public", "public"}
		for _, s := range m.Store() {
			files, names = append(files, s.File), append(names, s.Name)
		}
		in.Relaunch(files, kit.Passing(names...))
		stored("segment", "socket.0.udp.1")
	}
	before, _ := kit.BoundSockets(in.Port())

	f := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 20, Interval: 100 * time.Millisecond})
	messages := len(m.Messages())
	in.Signal(syscall.SIGKILL)
	in.AwaitExit(5 * time.Second)
	again()
	if _, at := m.Await(5*time.Second, messages, "READY after the takeover", kit.Has("READY", "1")); at == messages {
		t.Error("not ready")
	}
	reload(t, in)
	f.Stop().MustBeClean(t)

	in.Kill()
	again()
	whoami(t, dial(t, in.Client()))
	after, _ := kit.BoundSockets(in.Port())
	slices.Sort(before)
	slices.Sort(after)
	if !slices.Equal(before, after) {
		t.Errorf("UDP sockets %v, before %v", after, before)
	}
	if log := in.Log(); strings.Contains(log, "belongs to no listener") {
		t.Errorf("a passed socket was not known: %s", log)
	}
}
