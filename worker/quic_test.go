package worker

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/holdfast-quic/holdfast/connid"
	"github.com/holdfast-quic/holdfast/shm"
)

// sourceRecorder is a client's socket that notes who answers it. It hides what
// quic-go would use to read past it.
type sourceRecorder struct {
	net.PacketConn
	mu   sync.Mutex
	from []string
}

func (r *sourceRecorder) ReadFrom(b []byte) (int, net.Addr, error) {
	n, addr, err := r.PacketConn.ReadFrom(b)
	if err == nil {
		r.mu.Lock()
		if s := addr.String(); !slices.Contains(r.from, s) {
			r.from = append(r.from, s)
		}
		r.mu.Unlock()
	}
	return n, addr, err
}

// On a wildcard bind each answer leaves from the address that the client
// used, before and after a handover. C101
func TestAnswersLeaveFromTheAddressThatWasUsed(t *testing.T) {
	s := newService(t)
	sock := s.listen("udp4", "0.0.0.0:0")
	a := s.start(0, 1, sock).echo()
	s.current(1)
	a.read(0)
	var clients []*client
	var seen []*sourceRecorder
	for _, host := range []string{"127.0.0.1", "127.0.0.2"} {
		udp, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4zero})
		must(t, err)
		rec := &sourceRecorder{PacketConn: udp}
		c := &client{t: t, udp: udp, tr: &quic.Transport{Conn: rec}}
		t.Cleanup(c.close)
		to, err := net.ResolveUDPAddr("udp4", address(t, sock, host))
		must(t, err)
		c.conn, err = c.tr.Dial(t.Context(), to, clientTLS(), nil)
		must(t, err)
		c.str, err = c.conn.OpenStream()
		must(t, err)
		c.ping(100)
		clients, seen = append(clients, c), append(seen, rec)
	}
	b := s.start(1, 2, sock).echo()
	b.read(0)
	s.current(2)
	a.read()
	for i, c := range clients {
		c.ping(1000)
		c.ping(1000)
		rec := seen[i]
		rec.mu.Lock()
		if len(rec.from) != 1 || rec.from[0] != c.conn.RemoteAddr().String() {
			t.Errorf("client of %v was answered by %v", c.conn.RemoteAddr(), rec.from)
		}
		rec.mu.Unlock()
	}
}

// A client moves to another socket and to a connection ID that was issued
// before the handover and never used: only the route in it tells whose it is.
// C096, C099
func TestMigrationToSpareConnectionID(t *testing.T) {
	s := newService(t)
	sock := s.listen("udp4", "127.0.0.1:0")
	a := s.start(0, 1, sock).echo()
	s.current(1)
	a.read(0)
	c := s.dial("udp4", "", address(t, sock, "127.0.0.1"))
	c.ping(1000)
	b := s.start(1, 2, sock).echo()
	b.read(0)
	s.current(2)
	a.read()
	c.ping(1000)
	// The table forgets everything; only what is in the IDs is left.
	s.segment.Table().RemoveAll(a.node.self)

	for range 2 {
		udp, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		must(t, err)
		tr := &quic.Transport{Conn: udp}
		t.Cleanup(func() { tr.Close(); udp.Close() })
		path, err := c.conn.AddPath(tr)
		must(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		must(t, path.Probe(ctx))
		cancel()
		must(t, path.Switch())
		c.ping(100_000)
	}
	if n := b.count(shm.UnknownCID); n != 0 {
		t.Errorf("%d packets of no known connection", n)
	}
	if a.count(shm.QUICAccepted) != 1 || b.count(shm.QUICAccepted) != 0 {
		t.Error("the connection was accepted twice")
	}
	if used := s.segment.Table().Usage().Used; used == 0 {
		t.Error("the owner did not write down the IDs that came into use")
	}
}

// The connections of a worker that died get a stateless reset from whoever
// reads the socket next, not silence. C106
func TestSuccessorResetsConnectionsOfTheDead(t *testing.T) {
	s := newService(t)
	sock := s.listen("udp4", "127.0.0.1:0")
	a := s.start(0, 1, sock).echo()
	s.current(1)
	a.read(0)
	c := s.dial("udp4", "", address(t, sock, "127.0.0.1"))
	c.ping(1000)
	a.kill()
	b := s.start(1, 1, sock).echo()
	b.read(0)
	err := c.try(1000)
	var reset *quic.StatelessResetError
	if !errors.As(err, &reset) {
		t.Errorf("client sees %v, not a stateless reset", err)
	}
	if n := b.count(shm.UnknownCID); n == 0 {
		t.Error("not counted")
	}
}

// A packet for a live connection that is sent to another listener's port must
// not make that listener tell the token which ends it.
func TestListenersHaveResetKeysOfTheirOwn(t *testing.T) {
	key := [32]byte{1}
	a, b := listenerResetKey(key, "a"), listenerResetKey(key, "b")
	if *a == *b || *a == quic.StatelessResetKey(key) {
		t.Error("two listeners share a reset key")
	}
	if again := listenerResetKey(key, "a"); *again != *a {
		t.Error("the key of a listener changes")
	}
}

// relay passes datagrams between clients and a server, and can hold back what
// clients send.
type relay struct {
	front, back *net.UDPConn
	server      *net.UDPAddr
	client      atomic.Pointer[net.UDPAddr]
	hold        func(n int) bool    // datagram n of the client waits for release
	holdIf      func(b []byte) bool // so does one like this
	mu          sync.Mutex
	held        [][]byte
	n           int
}

func newRelay(t *testing.T, server string, hold func(int) bool) *relay {
	t.Helper()
	to, err := net.ResolveUDPAddr("udp4", server)
	must(t, err)
	r := &relay{server: to, hold: hold}
	r.front, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(t, err)
	r.back, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := r.front.ReadFromUDP(buf)
			if err != nil {
				return
			}
			r.client.Store(from)
			r.up(append([]byte(nil), buf[:n]...))
		}
	})
	wg.Go(func() {
		buf := make([]byte, 2048)
		for {
			n, _, err := r.back.ReadFromUDP(buf)
			if err != nil {
				return
			}
			_, _ = r.front.WriteToUDP(buf[:n], r.client.Load())
		}
	})
	t.Cleanup(func() { r.front.Close(); r.back.Close(); wg.Wait() })
	return r
}

func (r *relay) up(b []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n++
	if r.hold != nil && r.hold(r.n) || r.holdIf != nil && r.holdIf(b) {
		r.held = append(r.held, b)
		return
	}
	_, _ = r.back.WriteToUDP(b, r.server)
}

func (r *relay) waiting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.held)
}

// hasToken reports whether an Initial with a token waits.
func (r *relay) hasToken() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.held, func(b []byte) bool {
		h := parseHeader(b, testCIDLen)
		return h.class == classInitial && len(initialToken(b, &h)) > 0
	})
}

// release sends what was held back and holds nothing any more.
func (r *relay) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hold, r.holdIf = nil, nil
	for _, b := range r.held {
		_, _ = r.back.WriteToUDP(b, r.server)
	}
	r.held = nil
}

// A ClientHello in two Initial packets, of which the second comes after the
// handover, makes one connection, at the worker that got the first. C098
func TestInitialSplitAcrossHandover(t *testing.T) {
	for _, first := range []int{1, 2} {
		s := newService(t)
		sock := s.listen("udp4", "127.0.0.1:0")
		a := s.start(0, 1, sock).echo()
		s.current(1)
		a.read(0)
		// Everything but the first (or the second) datagram has to wait.
		r := newRelay(t, address(t, sock, "127.0.0.1"), func(n int) bool { return n != first })
		dialed := make(chan *client, 1)
		go func() { dialed <- s.dial("udp4", "", r.front.LocalAddr().String()) }()
		eventually(t, "half of the hello is at A", func() bool {
			return a.count(shm.PacketsAccepted)+a.count(shm.PacketsDelivered) > 0 && r.waiting() > 0
		})
		b := s.start(1, 2, sock).echo()
		b.read(0)
		s.current(2)
		a.read()
		r.release()
		c := <-dialed
		if c == nil {
			t.Fatal("no connection")
		}
		c.ping(10_000)
		if n := a.count(shm.QUICAccepted) + b.count(shm.QUICAccepted); n != 1 {
			t.Errorf("first datagram %d: %d connections for one client", first, n)
		}
		eventually(t, "B has forwarded", func() bool { return b.count(shm.PacketsForwarded) > 0 })
		c.close()
		a.stop()
		b.stop()
	}
}

// A Retry token of one generation is good for the next. C003
func TestRetryCrossesHandover(t *testing.T) {
	s := newService(t)
	sock := s.listen("udp4", "127.0.0.1:0")
	a := s.start(0, 1, sock)
	a.tr.VerifySourceAddress = func(net.Addr) bool { return true }
	a.echo()
	s.current(1)
	a.read(0)
	// The first datagram passes and draws a Retry; the answer to it waits.
	r := newRelay(t, address(t, sock, "127.0.0.1"), func(n int) bool { return n > 1 })
	dialed := make(chan *client, 1)
	go func() { dialed <- s.dial("udp4", "", r.front.LocalAddr().String()) }()
	eventually(t, "the client has answered the Retry", r.hasToken)
	b := s.start(1, 2, sock)
	b.tr.VerifySourceAddress = func(net.Addr) bool { return true }
	b.echo()
	b.read(0)
	s.current(2)
	a.read()
	r.release()
	c := <-dialed
	c.ping(10_000)
	if b.count(shm.QUICAccepted) != 1 || a.count(shm.QUICAccepted) != 0 {
		t.Errorf("accepted %d by A and %d by B", a.count(shm.QUICAccepted), b.count(shm.QUICAccepted))
	}
}

// Early data that overtakes its Initial, with the handover between the two,
// makes one connection where the early data went.
func TestEarlyDataBeforeItsInitial(t *testing.T) {
	s := newService(t)
	sock := s.listen("udp4", "127.0.0.1:0")
	a := s.start(0, 1, sock).echo()
	s.current(1)
	a.read(0)
	addr := address(t, sock, "127.0.0.1")
	tickets := clientTLS()
	tickets.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	got := make(chan string, 1)
	tickets.ClientSessionCache = notifyingCache{tickets.ClientSessionCache, got}
	tr := &quic.Transport{}
	udp, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(t, err)
	tr.Conn = udp
	t.Cleanup(func() { tr.Close(); udp.Close() })
	to, err := net.ResolveUDPAddr("udp4", addr)
	must(t, err)
	first, err := tr.Dial(t.Context(), to, tickets, nil)
	must(t, err)
	<-got
	must(t, first.CloseWithError(0, ""))

	// Initial packets wait, early data passes.
	r := newRelay(t, addr, nil)
	r.mu.Lock()
	r.holdIf = func(b []byte) bool { return parseHeader(b, testCIDLen).class == classInitial }
	r.mu.Unlock()
	front, err := net.ResolveUDPAddr("udp4", r.front.LocalAddr().String())
	must(t, err)
	c, err := tr.DialEarly(t.Context(), front, tickets, nil)
	must(t, err)
	str, err := c.OpenStream()
	must(t, err)
	accepted := a.count(shm.QUICAccepted)
	// More than fits behind the Initial packets in their datagrams.
	early := bytes.Repeat(seq(200), 25)
	_, err = str.Write(early)
	must(t, err)
	must(t, str.Close())
	eventually(t, "A has the early data", func() bool {
		return a.count(shm.PacketsAccepted) > accepted && r.waiting() > 0
	})
	b := s.start(1, 2, sock).echo()
	b.read(0)
	s.current(2)
	a.read()
	r.release()
	must(t, str.SetReadDeadline(time.Now().Add(5*time.Second)))
	echo, err := io.ReadAll(str)
	must(t, err)
	if !bytes.Equal(echo, early) {
		t.Errorf("echo has %d bytes, or others", len(echo))
	}
	if !c.ConnectionState().Used0RTT {
		t.Error("the early data was refused")
	}
	if a.count(shm.QUICAccepted) != accepted+1 || b.count(shm.QUICAccepted) != 0 {
		t.Errorf("accepted %d by A, %d by B", a.count(shm.QUICAccepted)-accepted, b.count(shm.QUICAccepted))
	}
	must(t, c.CloseWithError(0, ""))
}

// notifyingCache tells when a ticket has come.
type notifyingCache struct {
	tls.ClientSessionCache
	got chan string
}

func (c notifyingCache) Put(key string, s *tls.ClientSessionState) {
	c.ClientSessionCache.Put(key, s)
	if s != nil {
		select {
		case c.got <- key:
		default:
		}
	}
}

// When the last connection is gone, its entries go from the table, but not
// those of a connection that is just being made.
func TestTableIsClearedWhenIdle(t *testing.T) {
	s := newService(t)
	sock := s.listen("udp4", "127.0.0.1:0")
	a := s.start(0, 1, sock).echo()
	s.current(1)
	a.read(0)
	c := s.dial("udp4", "", address(t, sock, "127.0.0.1"))
	c.ping(1000)
	a.node.clearTable(a.registry.noQUIC)
	if s.segment.Table().Usage().Used == 0 {
		t.Fatal("cleared below a live connection")
	}
	c.close()
	eventually(t, "connection is gone", a.registry.noQUIC)
	a.node.clearTable(a.registry.noQUIC)
	if s.segment.Table().Usage().Used == 0 {
		t.Fatal("cleared right after an admission")
	}
	a.node.admitted.last.Add(-int64(settle))
	a.node.clearTable(a.registry.noQUIC)
	if n := s.segment.Table().Usage().Used; n != 0 {
		t.Errorf("%d entries are left", n)
	}
}

// Connection IDs carry the route of their worker, never repeat, and go on with
// a grant when a range is used up.
func TestConnectionIDs(t *testing.T) {
	s := newService(t)
	refills := 0
	g := newCIDGenerator(s.router, connid.Route{Slot: 2, Incarnation: 77}, connid.Range{From: 10, To: 14}, func() { refills++ })
	seen := map[string]bool{}
	next := func() {
		t.Helper()
		id, err := g.GenerateConnectionID()
		must(t, err)
		if route, ok := s.router.Route(id.Bytes()); !ok || route.Slot != 2 || route.Incarnation != 77 {
			t.Fatalf("route %v %v", route, ok)
		}
		if seen[string(id.Bytes())] {
			t.Fatal("an ID came twice")
		}
		seen[string(id.Bytes())] = true
	}
	for range 4 {
		next()
	}
	if refills == 0 {
		t.Error("no more nonces were asked for")
	}
	granted := make(chan struct{})
	go func() { defer close(granted); g.add(connid.Range{From: 100, To: 101}) }()
	next() // waits for the grant if need be
	<-granted
}
