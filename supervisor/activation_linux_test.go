package supervisor

import (
	"net"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// C140: passed sockets are used by the process that they are for.
func TestPassedNames(t *testing.T) {
	for _, tt := range []struct {
		name string
		env  map[string]string
		any  bool
		want []string
		err  string
	}{
		{name: "nothing"},
		{name: "none", env: map[string]string{"LISTEN_FDS": "0", "LISTEN_PID": "42"}},
		{
			name: "two", env: map[string]string{"LISTEN_FDS": "2", "LISTEN_PID": "42", "LISTEN_FDNAMES": "public:admin"},
			want: []string{"public", "admin"},
		},
		{
			name: "without names", env: map[string]string{"LISTEN_FDS": "2", "LISTEN_PID": "42"},
			want: []string{"unknown", "unknown"},
		},
		{
			name: "too few names", env: map[string]string{"LISTEN_FDS": "2", "LISTEN_PID": "42", "LISTEN_FDNAMES": "public"},
			want: []string{"unknown", "unknown"},
		},
		{
			name: "another process", env: map[string]string{"LISTEN_FDS": "2", "LISTEN_PID": "7", "LISTEN_FDNAMES": "a:b"},
			err: `LISTEN_PID is "7" and this is process 42`,
		},
		{name: "no process", env: map[string]string{"LISTEN_FDS": "1"}, err: "any-listen-pid"},
		{
			name: "another process, accepted", any: true, env: map[string]string{"LISTEN_FDS": "1", "LISTEN_PID": "7", "LISTEN_FDNAMES": "a"},
			want: []string{"a"},
		},
		{name: "no number", env: map[string]string{"LISTEN_FDS": "x", "LISTEN_PID": "42"}, err: "LISTEN_FDS"},
		{name: "negative", env: map[string]string{"LISTEN_FDS": "-1", "LISTEN_PID": "42"}, err: "LISTEN_FDS"},
		{name: "too many", env: map[string]string{"LISTEN_FDS": "1000000000", "LISTEN_PID": "42"}, err: "LISTEN_FDS"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := passedNames(func(name string) string { return tt.env[name] }, 42, tt.any)
			if !slices.Equal(got, tt.want) {
				t.Errorf("%q, want %q", got, tt.want)
			}
			if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v, want one about %s", err, tt.err)
			}
		})
	}
}

func TestStorable(t *testing.T) {
	for name, want := range map[string]bool{
		"segment": true, "socket.0.udp.12": true, "socket.63.tcp.0": true, "payload.3": true, "image.17": true,
		"socket.0.udp": false, "socket.x.udp.0": false, "socket.0.sctp.0": false, "public": false, "payload.": false,
		"holdfast.socket": false, "": false,
	} {
		if got := storable(name); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}

// passing makes sockets as a service manager would, blocking and bound.
func passing(t *testing.T, name, network, address string, reusePort bool) *passedFile {
	t.Helper()
	fd, sa, err := openSocket(network, address, false)
	if err != nil {
		t.Fatal(err)
	}
	if reusePort {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	}
	if err == nil {
		err = unix.Bind(fd, sa)
	}
	if err != nil {
		t.Fatal(err)
	}
	p, err := inheritedFile(fd, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.file.Close() })
	return p
}

func passTo(r *rig, files ...*passedFile) {
	r.s.env.passed = func(bool) ([]*passedFile, []error) { return files, nil }
}

// C112: the sockets that are passed are used, by address or by name, and no
// other is bound in their place; what belongs to nobody is closed.
func TestPassedSocketsAreUsed(t *testing.T) {
	udp := passing(t, "unknown", networkUDP, "127.0.0.1:0", true)
	tcp := passing(t, "other", networkTCP, udp.bound, false)
	stranger := passing(t, "stranger", networkUDP, "127.0.0.1:0", true)
	r := newRig(t, func(r *rig) {
		r.spec.Workers = 1
		r.spec.Listeners = []ListenerSpec{{Name: "public", Address: udp.bound, QUIC: true, TCP: true}}
	})
	r.s.env.tryBind = func(network, address string) error {
		t.Errorf("looked for who holds %s %s", network, address)
		return nil
	}
	passTo(r, udp, tcp, stranger)
	r.run()
	r.waitFor("first generation", func(st *Status) bool { return r.current(st) == 1 })
	if n := r.binds.Load(); n > 0 {
		t.Errorf("%d sockets were bound", n)
	}
	r.inLoop(func(s *Supervisor) {
		sets := s.sockets.all()[0].sets
		if len(sets) != 2 || sets[0].sockets[0].file != udp.file || sets[1].sockets[0].file != tcp.file {
			t.Errorf("sets %+v", sets)
		}
	})
	if _, err := stranger.file.Stat(); err == nil {
		t.Error("the stranger is open")
	}
	for _, p := range []*passedFile{udp, tcp} {
		if flags(t, p.file, unix.F_GETFL)&unix.O_NONBLOCK == 0 {
			t.Errorf("%s blocks", p)
		}
	}
}

// inLoop runs fn in the supervisor's loop.
func (r *rig) inLoop(fn func(*Supervisor)) {
	r.t.Helper()
	if err := r.s.call(r.t.Context(), fn); err != nil {
		r.t.Fatal(err)
	}
}

// A socket under the listener's name is used whatever address it has, as long
// as that is what the configuration can mean.
func TestPassedSocketsByName(t *testing.T) {
	any4 := passing(t, "public", networkUDP, "0.0.0.0:0", true)
	_, port, _ := net.SplitHostPort(any4.bound)
	for name, tt := range map[string]struct {
		address string
		used    bool
	}{
		"any port":     {"127.0.0.1:0", true},
		"same port":    {"127.0.0.1:" + port, true},
		"another port": {"127.0.0.1:1", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := &sockets{passed: []*passedFile{any4}}
			l := &listener{name: "public"}
			if got := s.claim(&socketSet{listener: l, network: networkUDP, address: tt.address}); (len(got) == 1) != tt.used {
				t.Errorf("claimed %v", got)
			}
			if len(s.passed) != boolInt(!tt.used) {
				t.Errorf("left %v", s.passed)
			}
		})
	}
	s := &sockets{passed: []*passedFile{any4}}
	if got := s.claim(&socketSet{listener: &listener{name: "public"}, network: networkTCP, address: any4.bound}); got != nil {
		t.Errorf("claimed %v for TCP", got)
	}
	if got := s.claim(&socketSet{listener: &listener{name: "else"}, network: networkUDP, address: "127.0.0.1:" + port}); got != nil {
		t.Errorf("claimed %v for another listener on another address", got)
	}
}

// A listener that goes and comes back finds the passed socket again: the
// manager holds it, so it could not be bound.
func TestPassedSocketSurvivesItsListener(t *testing.T) {
	udp := passing(t, "unknown", networkUDP, "127.0.0.1:0", false)
	r := newRig(t, func(r *rig) {
		r.spec.Workers = 1
		r.spec.Listeners = append(r.spec.Listeners, ListenerSpec{Name: "second", Address: udp.bound, QUIC: true})
	})
	passTo(r, udp)
	r.run()
	r.waitFor("first generation", func(st *Status) bool { return r.current(st) == 1 })
	both := r.spec.Listeners
	for round := range 2 {
		r.with(func() { r.spec.Listeners = both[:1] })
		r.mustReload()
		r.waitFor("the listener is gone", func(st *Status) bool { return len(st.Listeners) == 1 && len(st.Generations) == 1 })
		r.with(func() { r.spec.Listeners = both })
		r.mustReload()
		r.inLoop(func(s *Supervisor) {
			i := slices.IndexFunc(s.sockets.all(), func(l *listener) bool { return l.name == "second" })
			if l := s.sockets.all()[i]; len(l.sets) != 1 || l.sets[0].sockets[0].file != udp.file {
				t.Errorf("round %d: sets %+v", round, l.sets)
			}
		})
	}
}
