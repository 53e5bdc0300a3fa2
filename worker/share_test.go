package worker

import (
	"context"
	"crypto/rand"
	"net"
	"os"
	"testing"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/holdfast-quic/holdfast/connid"
	"github.com/holdfast-quic/holdfast/internal/lifeline"
	"github.com/holdfast-quic/holdfast/shm"
)

// trial is a current worker that reads the socket, and canary workers that
// have a share and read nothing.
func trial(t *testing.T, share uint16, prepare func(*member)) (s *service, sock *os.File, current *member, canaries []*member) {
	s = newService(t)
	sock = s.listen("udp4", "127.0.0.1:0")
	start := func(slot shm.SlotID, gen shm.Generation) *member {
		m := s.start(slot, gen, sock)
		if prepare != nil {
			prepare(m)
		}
		return m.echo()
	}
	current = start(0, 1)
	canaries = []*member{start(1, 2), start(2, 2)}
	current.read(0)
	s.segment.Admission().Store(shm.Choice{Current: 1, Canary: 2, Share: share})
	return s, sock, current, canaries
}

// connect opens n connections one after the other and closes each.
func (s *service) connect(n int, addr string) {
	s.t.Helper()
	for range n {
		c := s.dial("udp4", "", addr)
		c.ping(10)
		c.close()
	}
}

// The canary gets its share, to within a few connections, whether or not each
// client has to show its address first: both turns of such a connection lead to
// one generation.
func TestCanaryGetsItsShareOfQUIC(t *testing.T) {
	for name, retry := range map[string]bool{"plain": false, "retry": true} {
		t.Run(name, func(t *testing.T) {
			s, sock, a, canaries := trial(t, 1<<14, func(m *member) { // 25 %
				m.tr.VerifySourceAddress = func(net.Addr) bool { return retry }
			})
			const n = 80
			s.connect(n, address(t, sock, "127.0.0.1"))
			got := canaries[0].count(shm.QUICAccepted) + canaries[1].count(shm.QUICAccepted)
			if got < n/4-8 || got > n/4+8 || got+a.count(shm.QUICAccepted) != n {
				t.Errorf("%d of %d connections, %d stayed", got, n, a.count(shm.QUICAccepted))
			}
			for _, c := range []shm.Counter{shm.DropLoop, shm.DropOrphan, shm.DropNoListener, shm.HandshakesFailed} {
				if n := s.segment.Totals()[c]; n != 0 {
					t.Errorf("%v: %d", c, n)
				}
			}
			a.stop()
			for _, m := range canaries {
				m.stop()
			}
			s.checkSums()
		})
	}
}

// Whatever comes with one ID goes to one worker, even if the first packet is
// still on its way there, and even if the table has no room.
func TestRetransmissionsAgreeOnTheGeneration(t *testing.T) {
	s := newService(t)
	sock := s.listen("udp4", "127.0.0.1:0")
	a, canaries := s.start(0, 1, sock), []*member{s.start(1, 2, sock), s.start(2, 2, sock)} // nobody reads but the test
	s.segment.Admission().Store(shm.Choice{Current: 1, Canary: 2, Share: 1 << 15})
	r := &a.l.conn.rx
	c := s.segment.Admission().Load()
	refused := 0
	for range 4000 {
		var b [8]byte
		_, _ = rand.Read(b[:])
		id, err := connid.FromBytes(b[:])
		must(t, err)
		hash := s.segment.Table().Hash(id)
		v := r.place(id, c, hash)
		hit, ok := s.segment.Table().Lookup(id, shm.EpochAt(r.now))
		if !ok {
			refused++
		} else if v.action == accept && hit.Owner != a.node.self || v.action == forward && hit.Owner != v.owner {
			t.Fatalf("%+v, but the table names %+v", v, hit)
		}
		if again := r.place(id, c, hash); again != v {
			t.Fatalf("first %+v, then %+v (in the table: %v)", v, again, ok)
		}
		if v.action == forward && v.owner != canaries[0].node.self && v.owner != canaries[1].node.self {
			t.Fatalf("forwarded to %+v", v.owner)
		}
	}
	t.Logf("%d found no room", refused)
}

// A connection counts for more than the share.
func TestAGenerationWithoutWorkersGetsNothing(t *testing.T) {
	s, sock, a, canaries := trial(t, 60_000, nil)
	for _, m := range canaries {
		s.segment.Directory().SetServing(m.node.self.Slot, false)
	}
	s.connect(10, address(t, sock, "127.0.0.1"))
	if n := a.count(shm.QUICAccepted); n != 10 {
		t.Errorf("%d of 10 accepted", n)
	}
}

// What a client thinks of the certificate ends a handshake, and counts.
func TestFailedHandshakesAreCounted(t *testing.T) {
	s := newService(t)
	sock := s.listen("udp4", "127.0.0.1:0")
	a := s.start(0, 1, sock).echo()
	s.current(1)
	a.read(0)
	strict := clientTLS()
	strict.InsecureSkipVerify = false
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := quic.DialAddr(ctx, address(t, sock, "127.0.0.1"), strict, nil); err == nil {
		t.Fatal("the certificate was accepted")
	}
	eventually(t, "counted", func() bool { return a.count(shm.HandshakesFailed) == 1 })
	s.connect(1, address(t, sock, "127.0.0.1"))
	eventually(t, "closed", func() bool { quic, _ := a.registry.counts(); return quic == 0 })
	if n := a.count(shm.HandshakesFailed); n != 1 {
		t.Errorf("%d failed handshakes", n)
	}
}

// acceptor is a worker as far as accepting TCP connections goes.
type acceptor struct {
	*tcpListener
	node *node
}

func (s *service) acceptor(slot shm.SlotID, gen shm.Generation, f *os.File) *acceptor {
	s.t.Helper()
	s.inc++
	self := shm.Owner{Slot: slot, Incarnation: s.inc}
	s.segment.Directory().Assign(slot, self.Incarnation, gen, 1)
	s.segment.Directory().SetServing(slot, true)
	n, err := newNode(s.segment, self, gen, s.router)
	must(s.t, err)
	s.t.Cleanup(n.bells.close)
	l := &listener{info: lifeline.Listener{ID: 0, Name: "tcp", TCP: true}}
	_, _, err = l.addSocket(f, lifeline.Socket{Network: networkTCP, Address: "127.0.0.1:0"})
	must(s.t, err)
	ln, err := l.openTCP(newRegistry(n))
	must(s.t, err)
	s.t.Cleanup(l.close)
	l.read(nil, []int{0})
	return &acceptor{ln.(*tcpListener), n}
}

// serve accepts until the end of the test.
func (a *acceptor) serve() {
	go func() {
		for {
			c, err := a.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte{byte(a.node.generation)})
			c.Close()
		}
	}()
}

func listenTCP(t *testing.T) (*os.File, string) {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	defer ln.Close()
	f, err := ln.(*net.TCPListener).File()
	must(t, err)
	t.Cleanup(func() { f.Close() })
	return f, ln.Addr().String()
}

// knock makes n connections, one after the other or some at a time, and
// returns how many were of generation 2 and how long the longest took.
func knock(t *testing.T, addr string, n, atOnce int) (canary int, longest time.Duration) {
	t.Helper()
	type result struct {
		gen  byte
		took time.Duration
		err  error
	}
	results := make(chan result, n)
	turns := make(chan struct{}, atOnce)
	for range n {
		turns <- struct{}{}
		go func() {
			defer func() { <-turns }()
			begin := time.Now()
			var r result
			c, err := net.Dial("tcp4", addr)
			if err == nil {
				var b [1]byte
				_ = c.SetDeadline(time.Now().Add(5 * time.Second))
				_, err = c.Read(b[:])
				r.gen = b[0]
				c.Close()
			}
			r.took, r.err = time.Since(begin), err
			results <- r
		}()
	}
	for range n {
		r := <-results
		must(t, r.err)
		if r.gen == 2 {
			canary++
		}
		longest = max(longest, r.took)
	}
	return canary, longest
}

func TestCanaryGetsItsShareOfTCP(t *testing.T) {
	for _, tt := range []struct {
		name         string
		percent      int
		old, new     int // workers
		atOnce       int
		hung, absent bool
	}{
		{name: "half", percent: 50, old: 2, new: 1, atOnce: 1},
		{name: "a tenth, several at once", percent: 10, old: 2, new: 2, atOnce: 8},
		{name: "one in a hundred", percent: 1, old: 1, new: 1, atOnce: 1},
		{name: "a worker of two hangs", percent: 50, old: 2, new: 1, atOnce: 1, hung: true},
		{name: "the canary has no worker", percent: 50, old: 1, new: 1, atOnce: 1, absent: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newService(t)
			f, addr := listenTCP(t)
			s.segment.Admission().Store(shm.Choice{Current: 1, Canary: 2, Share: uint16(tt.percent * 65536 / 100)})
			slot := shm.SlotID(0)
			for i := range tt.old {
				a := s.acceptor(slot, 1, f)
				if !tt.hung || i > 0 {
					a.serve()
				}
				slot++
			}
			for range tt.new {
				a := s.acceptor(slot, 2, f)
				if tt.absent {
					s.segment.Directory().SetServing(slot, false)
				} else {
					a.serve()
				}
				slot++
			}
			const n = 300
			got, longest := knock(t, addr, n, tt.atOnce)
			want := tt.percent * n / 100
			if tt.absent {
				want = 0
			}
			if got < want-9 || got > want+9 { // 3 points
				t.Errorf("%d of %d connections, want %d", got, n, want)
			}
			t.Logf("%d of %d, longest %v", got, n, longest)
		})
	}
}

// A generation that is in turn and takes nothing holds up nobody for long.
func TestAHungGenerationHoldsUpNobody(t *testing.T) {
	s := newService(t)
	f, addr := listenTCP(t)
	s.segment.Admission().Store(shm.Choice{Current: 1, Canary: 2, Share: 1 << 15})
	s.acceptor(0, 1, f).serve()
	s.acceptor(1, 2, f) // accepts nothing
	got, longest := knock(t, addr, 50, 1)
	if got != 0 || longest > time.Second {
		t.Errorf("%d taken by nobody, longest wait %v", got, longest)
	}
	s.segment.Admission().Store(shm.Choice{Current: 1})
	if _, longest := knock(t, addr, 5, 1); longest > time.Second {
		t.Errorf("without a canary: %v", longest)
	}
}
