package supervisor

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-quic/holdfast/packetqueue"
)

func newSockets(t *testing.T) *sockets {
	t.Helper()
	s := &sockets{
		env: realEnv(), warned: map[string]bool{},
		warn:    func(address string, err error) { t.Logf("%s: %v", address, err) },
		options: socketOptions{receiveBuffer: 1 << 16, sendBuffer: 1 << 16},
	}
	t.Cleanup(func() {
		for _, l := range s.all() {
			s.forget(l)
		}
	})
	return s
}

func freePort(t *testing.T) string {
	t.Helper()
	for range 20 {
		l, err := net.Listen("tcp", "0.0.0.0:0")
		if err != nil {
			t.Fatal(err)
		}
		port := portOf(l.Addr().String())
		l.Close()
		if tryBindSocket(networkUDP, "0.0.0.0:"+port) == nil && tryBindSocket(networkTCP, "0.0.0.0:"+port) == nil {
			return port
		}
	}
	t.Fatal("no free port")
	return ""
}

func (s *sockets) bindAll(t *testing.T, count int, specs ...ListenerSpec) []wanted {
	t.Helper()
	wants, err := s.register(specs, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range wants {
		for _, set := range s.missing(w) {
			if err := s.grow(set, count); err != nil {
				t.Fatal(err)
			}
		}
	}
	return wants
}

func socketOption(t *testing.T, f *os.File, level, option int) int {
	t.Helper()
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var v int
	if err := raw.Control(func(fd uintptr) { v, err = unix.GetsockoptInt(int(fd), level, option) }); err != nil {
		t.Fatal(err)
	}
	return v
}

func flags(t *testing.T, f *os.File, command int) int {
	t.Helper()
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var v int
	if err := raw.Control(func(fd uintptr) { v, err = unix.FcntlInt(fd, command, 0) }); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestSocketOptions(t *testing.T) {
	s := newSockets(t)
	wants := s.bindAll(t, 3, ListenerSpec{Name: "a", Address: "127.0.0.1:0", QUIC: true, TCP: true})
	l := wants[0].listener
	if len(l.sets) != 2 || len(l.sets[0].sockets) != 3 || len(l.sets[1].sockets) != 1 || l.sets[0].address != l.sets[1].address {
		t.Fatalf("sets %+v %+v", l.sets[0], l.sets[1])
	}
	for _, set := range l.sets {
		for i, sock := range set.sockets {
			if sock.index != i || portOf(sock.bound) != l.real {
				t.Errorf("socket %+v", sock)
			}
			if flags(t, sock.file, unix.F_GETFD)&unix.FD_CLOEXEC == 0 || flags(t, sock.file, unix.F_GETFL)&unix.O_NONBLOCK == 0 {
				t.Error("not close-on-exec or blocking")
			}
			if socketOption(t, sock.file, unix.SOL_SOCKET, unix.SO_REUSEPORT) != 1 {
				t.Error("no SO_REUSEPORT")
			}
		}
	}
	udp := l.sets[0].sockets[0].file
	for name, value := range map[string]int{
		"SO_RXQ_OVFL": socketOption(t, udp, unix.SOL_SOCKET, unix.SO_RXQ_OVFL),
		"IP_PKTINFO":  socketOption(t, udp, unix.IPPROTO_IP, unix.IP_PKTINFO),
		"IP_RECVTOS":  socketOption(t, udp, unix.IPPROTO_IP, unix.IP_RECVTOS),
		"listening":   socketOption(t, l.sets[1].sockets[0].file, unix.SOL_SOCKET, unix.SO_ACCEPTCONN),
	} {
		if value != 1 {
			t.Errorf("%s is %d", name, value)
		}
	}
}

func TestSocketIndicesAreNeverReused(t *testing.T) {
	s := newSockets(t)
	spec := ListenerSpec{Name: "a", Address: "127.0.0.1:0", QUIC: true}
	first := s.bindAll(t, 2, spec)[0].listener
	s.forget(first)
	second := s.bindAll(t, 1, spec)[0].listener
	if second.id != first.id || second.sets[0].sockets[0].index != 2 {
		t.Errorf("listener %d, socket %d", second.id, second.sets[0].sockets[0].index)
	}
}

func TestListenerIdentity(t *testing.T) {
	s := newSockets(t)
	port := freePort(t)
	a := ListenerSpec{Name: "a", Address: "127.0.0.1:" + port, QUIC: true}
	id := s.bindAll(t, 1, a)[0].listener
	for _, tc := range []struct {
		name string
		spec ListenerSpec
		same bool
	}{
		{"again", a, true},
		{"other host", ListenerSpec{Name: "a", Address: "127.0.0.2:" + port, QUIC: true}, true},
		{"renamed", ListenerSpec{Name: "b", Address: a.Address, QUIC: true}, true},
		{"renamed back", a, true},
		{"other port", ListenerSpec{Name: "a", Address: "127.0.0.1:1", QUIC: true}, false},
	} {
		wants, err := s.register([]ListenerSpec{tc.spec}, false)
		if err != nil || (wants[0].listener == id) != tc.same {
			t.Errorf("%s: %v, same listener: %v", tc.name, err, !tc.same)
		}
	}
	if _, err := s.register([]ListenerSpec{a, {Name: "c", Address: a.Address, QUIC: true}}, false); err == nil {
		t.Error("two listeners on one address")
	}
	if _, err := s.register([]ListenerSpec{a, {Name: "c", Address: a.Address, TCP: true}}, false); err != nil {
		t.Errorf("UDP and TCP of one address apart: %v", err)
	}
}

func TestListenerNumbersRunOut(t *testing.T) {
	s := newSockets(t)
	var specs []ListenerSpec
	for i := range maxListeners + 1 {
		specs = append(specs, ListenerSpec{Name: fmt.Sprint(i), Address: fmt.Sprintf("127.0.0.1:%d", i+1), QUIC: true})
	}
	if _, err := s.register(specs, false); !errors.Is(err, ErrLimit) {
		t.Errorf("register: %v", err)
	}
	if left := s.all(); len(left) != 0 {
		t.Errorf("%d listeners left by a failed registration", len(left))
	}
}

func TestForeignHolder(t *testing.T) {
	for _, network := range []string{networkUDP, networkTCP} {
		// Of this same user, and willing to share.
		f, bound, err := bindSocket(network, "127.0.0.1:0", socketOptions{})
		if err != nil {
			t.Fatal(err)
		}
		err = tryBindSocket(network, bound)
		held, ok := errors.AsType[*holderError](err)
		if !ok || !errors.Is(err, ErrAddressInUse) || held.pid != os.Getpid() || !strings.Contains(err.Error(), bound) {
			t.Errorf("%s: %v", network, err)
		}
		f.Close()
		if err := tryBindSocket(network, bound); err != nil {
			t.Errorf("%s, free again: %v", network, err)
		}
	}
}

func TestDualStack(t *testing.T) { // C102
	if err := ipv6Missing(); err != nil {
		t.Skip(err)
	}
	s := newSockets(t)
	port := freePort(t)
	both := s.bindAll(t, 1, ListenerSpec{Name: "any", Address: ":" + port, QUIC: true})[0].listener
	if socketOption(t, both.sets[0].sockets[0].file, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY) != 0 {
		t.Error("the wildcard takes IPv6 only")
	}
	s.forget(both)
	port = freePort(t)
	apart := s.bindAll(t, 1,
		ListenerSpec{Name: "six", Address: "[::]:" + port, QUIC: true, TCP: true},
		ListenerSpec{Name: "four", Address: "0.0.0.0:" + port, QUIC: true, TCP: true})
	if socketOption(t, apart[0].listener.sets[0].sockets[0].file, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY) != 1 {
		t.Error("with an IPv4 listener beside it the IPv6 wildcard must keep to its family")
	}
}

func TestHostWithoutIPv6(t *testing.T) { // C103
	s := newSockets(t)
	s.env.ipv6 = func() error { return unix.EAFNOSUPPORT }
	warnings := 0
	s.warn = func(string, error) { warnings++ }
	for range 3 {
		wants, err := s.register([]ListenerSpec{{Name: "a", Address: "[::]:443", QUIC: true}, {Name: "b", Address: "[::1]:444", QUIC: true}}, false)
		if err != nil || wants[0].address != "0.0.0.0:443" || wants[1].address != "127.0.0.1:444" {
			t.Fatalf("%+v %v", wants, err)
		}
	}
	if warnings != 2 {
		t.Errorf("%d warnings for two addresses", warnings)
	}
	if _, err := s.register([]ListenerSpec{{Name: "a", Address: "[::]:443", QUIC: true}}, true); err == nil {
		t.Error("strict serves something else than was asked for")
	}
	if _, err := s.register([]ListenerSpec{{Name: "c", Address: "[2001:db8::1]:443", QUIC: true}}, false); err == nil {
		t.Error("a global IPv6 address was replaced")
	}
}

func TestContains(t *testing.T) {
	for _, tc := range []struct {
		wide, narrow string
		want         bool
	}{
		{"0.0.0.0:1", "127.0.0.1:1", true},
		{"127.0.0.1:1", "0.0.0.0:1", false},
		{"[::]:1", "127.0.0.1:1", true},
		{"[::]:1", "[::1]:1", true},
		{"0.0.0.0:1", "[::1]:1", false},
		{"0.0.0.0:1", "127.0.0.1:2", false},
		{"127.0.0.1:1", "127.0.0.1:1", true},
	} {
		if got := contains(tc.wide, tc.narrow); got != tc.want {
			t.Errorf("%s contains %s: %v", tc.wide, tc.narrow, got)
		}
	}
}

// C024: a listener moves to an address that contains its own, and back.
func TestAddressMoves(t *testing.T) {
	port := freePort(t)
	at := func(host string) []ListenerSpec {
		return []ListenerSpec{{Name: "public", Address: host + ":" + port, QUIC: true, TCP: true}}
	}
	r := newRunning(t, func(r *rig) { r.spec.Listeners, r.script.onDrain = at("127.0.0.1"), stays })
	reads := func(generation uint32) map[int]bool {
		out := map[int]bool{}
		for _, f := range r.alive(generation) {
			for _, index := range f.udp(0) {
				out[index] = true
			}
		}
		return out
	}
	r.with(func() { r.spec.Listeners = at("0.0.0.0") })
	r.mustReload()
	r.waitFor("new reads both addresses, old none", func(st *Status) bool {
		return len(st.Listeners[0].UDP) == 2 && len(reads(2)) == 4 && len(reads(1)) == 0
	})
	time.Sleep(acceptSettle + 100*time.Millisecond)
	st := r.waitFor("narrow socket stays inside the wide one", func(st *Status) bool { return len(st.Listeners) == 1 })
	if len(st.Listeners[0].TCP) != 2 {
		t.Errorf("TCP %v", st.Listeners[0].TCP)
	}
	inherited := r.binds.Load()
	r.with(func() { r.spec.Listeners = at("127.0.0.1") })
	r.mustReload()
	if n := r.binds.Load() - inherited; n != 0 {
		t.Errorf("%d binds to move back to sockets that are there", n)
	}
	// Connections on the wide address go on; new ones over TCP end with it.
	r.waitFor("wide TCP socket closed", func(st *Status) bool { return len(st.Listeners[0].TCP) == 1 && len(st.Listeners[0].UDP) == 2 })
	if got := reads(3); len(got) != 4 {
		t.Errorf("reads %v", got)
	}
	for _, f := range append(r.alive(1), r.alive(2)...) {
		f.exit(exit{known: true})
	}
	r.waitFor("wide UDP sockets closed", func(st *Status) bool {
		return len(st.Listeners[0].UDP) == 1 && len(st.Generations) == 1 && len(reads(3)) == 2
	})
}

func TestNarrowingFromTheStart(t *testing.T) { // C024
	port := freePort(t)
	r := newRunning(t, func(r *rig) {
		r.spec.Listeners = []ListenerSpec{{Name: "public", Address: "0.0.0.0:" + port, QUIC: true, TCP: true}}
	})
	hold := make(chan struct{})
	r.with(func() {
		r.spec.Listeners = []ListenerSpec{{Name: "public", Address: "127.0.0.1:" + port, QUIC: true, TCP: true}}
		r.script.onWelcome = func(*fakeWorker) bool { <-hold; return true }
	})
	result := make(chan Error, 1)
	go func() { _, reason := r.reload(); result <- reason }()
	r.waitFor("starting", func(st *Status) bool { return len(r.alive(2)) == 2 })
	st := r.waitFor("status", func(*Status) bool { return true })
	if len(st.Listeners[0].UDP) != 1 {
		t.Errorf("bound before somebody reads it: %v", st.Listeners[0].UDP)
	}
	close(hold)
	if reason := <-result; reason.Reason != "" {
		t.Errorf("reload: %+v", reason)
	}
	r.waitFor("moved", func(st *Status) bool {
		return len(st.Listeners[0].UDP) == 1 && len(st.Listeners[0].TCP) == 1 && strings.HasPrefix(st.Listeners[0].UDP[0], "127.")
	})
}

// A descriptor in Go's poller wakes the process whenever somebody else's
// packet arrives. The supervisor holds sockets and doorbells for others only.
func TestHeldDescriptorsWakeNobody(t *testing.T) {
	var held []*os.File
	for _, network := range []string{networkUDP, networkTCP} {
		f, _, err := bindSocket(network, "127.0.0.1:0", socketOptions{})
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, f)
	}
	bell, err := packetqueue.NewDoorbell()
	if err != nil {
		t.Fatal(err)
	}
	held = append(held, bell)
	watched := polledDescriptors(t)
	for _, f := range held {
		defer f.Close()
		raw, err := f.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		if err := raw.Control(func(fd uintptr) {
			if watched[int(fd)] {
				t.Errorf("%s is in Go's poller", f.Name())
			}
			if flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK == 0 {
				t.Errorf("%s blocks: flags %#x, %v", f.Name(), flags, err)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// polledDescriptors returns what the epoll descriptors of this process watch.
func polledDescriptors(t *testing.T) map[int]bool {
	t.Helper()
	// Something must be in the poller, or the test looks in the wrong place.
	sample, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer sample.Close()
	files, err := filepath.Glob("/proc/self/fdinfo/*")
	if err != nil {
		t.Fatal(err)
	}
	watched := map[int]bool{}
	for _, file := range files {
		info, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(info)) {
			var fd int
			if _, err := fmt.Sscanf(line, "tfd: %d", &fd); err == nil {
				watched[fd] = true
			}
		}
	}
	if len(watched) == 0 {
		t.Fatal("no epoll descriptor watches anything")
	}
	return watched
}
