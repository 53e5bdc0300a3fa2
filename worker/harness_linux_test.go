package worker

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"golang.org/x/sys/unix"

	"github.com/holdfast-quic/holdfast/connid"
	"github.com/holdfast-quic/holdfast/internal/lifeline"
	"github.com/holdfast-quic/holdfast/packetqueue"
	"github.com/holdfast-quic/holdfast/shm"
)

// service is a supervisor as far as the packet path needs one: a segment on a
// plain slice, doorbells, keys and listening sockets.
type service struct {
	t       testing.TB
	segment *shm.Segment
	region  []byte // of the segment
	router  *connid.Router
	bells   []*os.File
	nonces  uint64
	inc     shm.Incarnation
	members []*member
}

const testSlots = 4

var testTokenKey = [32]byte{4}

func newService(t testing.TB) *service {
	t.Helper()
	g := shm.Geometry{Slots: testSlots, TableEntries: 1 << 12, Lanes: 8, LaneBytes: 256 << 10}
	region := make([]byte, g.Size()) // large, so it begins on a page
	must(t, shm.Format(region, g, [16]byte{1, 2, 3}))
	seg, err := shm.Open(region)
	must(t, err)
	router, err := connid.NewRouter(connid.Config{ServerID: []byte{7}, Key: make([]byte, 16)})
	must(t, err)
	s := &service{t: t, segment: seg, region: region, router: router}
	for slot := range testSlots {
		must(t, packetqueue.Format(seg.Queue(shm.SlotID(slot)), g.Lanes, g.LaneBytes))
		bell, err := packetqueue.NewDoorbell()
		must(t, err)
		t.Cleanup(func() { bell.Close() })
		s.bells = append(s.bells, bell)
	}
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// listen binds a UDP socket as the supervisor does.
func (s *service) listen(network, address string) *os.File {
	s.t.Helper()
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			must(s.t, unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
		})
	}}
	pc, err := lc.ListenPacket(context.Background(), network, address)
	must(s.t, err)
	defer pc.Close()
	f, err := pc.(*net.UDPConn).File()
	must(s.t, err)
	s.t.Cleanup(func() { f.Close() })
	return f
}

// member is one worker of a service, in this process, with one listener.
type member struct {
	*service
	node     *node
	bell     int
	registry *registry
	cids     *cidGenerator
	l        *listener
	tr       *quic.Transport
	ln       *quic.EarlyListener
	serving  sync.WaitGroup
}

var testListener = lifeline.Listener{ID: 3, Name: "public", QUIC: true}

// start makes a worker of a generation in a slot with the given sockets.
func (s *service) start(slot shm.SlotID, gen shm.Generation, sockets ...*os.File) *member {
	s.t.Helper()
	s.inc++
	self := shm.Owner{Slot: slot, Incarnation: s.inc}
	d := s.segment.Directory()
	d.Assign(slot, self.Incarnation, gen, 1<<testListener.ID)
	n, err := newNode(s.segment, self, gen, s.router)
	must(s.t, err)
	n.retries.key = testTokenKey
	n.warn = func(what, listener string, err error) { s.t.Logf("%v: %s: %s: %v", self, listener, what, err) }
	for i, bell := range s.bells {
		must(s.t, n.bells.set(shm.SlotID(i), bell))
	}
	m := &member{service: s, node: n, registry: newRegistry(n), l: &listener{info: testListener}}
	m.bell, err = dupFD(s.bells[slot])
	must(s.t, err)
	s.nonces += 1 << 16
	m.cids = newCIDGenerator(s.router, connid.Route{Slot: uint16(slot), Incarnation: uint32(self.Incarnation)},
		connid.Range{From: s.nonces, To: s.nonces + 1<<16}, func() {})
	for i, f := range sockets {
		_, _, err := m.l.addSocket(f, lifeline.Socket{Listener: testListener.ID, Network: networkUDP, Index: i})
		must(s.t, err)
	}
	c, err := m.l.openConn(n, m.bell)
	must(s.t, err)
	token := quic.TokenGeneratorKey(testTokenKey)
	m.tr = newTransport(c, m.cids, m.registry, listenerResetKey([32]byte{9}, testListener.Name), &token)
	m.l.transport = m.tr
	s.members = append(s.members, m)
	s.t.Cleanup(m.stop)
	d.SetServing(slot, true)
	return m
}

// echo starts to accept connections and echo their streams.
func (m *member) echo() *member {
	m.t.Helper()
	ln, err := m.tr.ListenEarly(serverTLS(m.t), &quic.Config{Allow0RTT: true, EnableDatagrams: true, MaxIdleTimeout: 20 * time.Second})
	must(m.t, err)
	m.ln = ln
	m.serving.Go(func() {
		for {
			c, err := ln.Accept(context.Background())
			if err != nil {
				return
			}
			m.serving.Go(func() { echoConn(c) })
		}
	})
	return m
}

func echoConn(c *quic.Conn) {
	for {
		str, err := c.AcceptStream(context.Background())
		if err != nil {
			return
		}
		go func() {
			_, _ = io.Copy(str, str)
			str.Close()
		}()
	}
}

// read makes m the reader of its sockets with these indices, and waits until
// it is.
func (m *member) read(indices ...int) {
	m.t.Helper()
	for _, changed := range m.l.read(indices, nil) {
		select {
		case <-changed:
		case <-time.After(5 * time.Second):
			m.t.Fatal("the reader does not take the plan over")
		}
	}
}

// current makes a generation the one that takes new connections.
func (s *service) current(gen shm.Generation) {
	s.segment.Admission().Store(shm.Choice{Current: gen})
}

// stop ends the worker without killing its place in the directory.
func (m *member) stop() {
	m.l.mu.Lock()
	stopped := m.l.conn == nil
	m.l.mu.Unlock()
	if stopped {
		return
	}
	m.l.close()
	m.serving.Wait()
	m.node.bells.close()
	unix.Close(m.bell)
}

// kill ends the worker as the supervisor sees a crash.
func (m *member) kill() {
	m.stop()
	m.segment.Directory().MarkDead(m.node.self.Slot)
	m.segment.Table().Reclaim(m.node.self)
}

func (m *member) count(c shm.Counter) uint64 { return m.node.counters.Get(c) }

// checkSums verifies that the counters add up.
func (s *service) checkSums() {
	s.t.Helper()
	n := s.segment.Totals()
	direct := n[shm.PacketsDelivered] + n[shm.PacketsAccepted] + n[shm.PacketsForwarded] + n[shm.DropQueueFull] +
		n[shm.DropNoLane] + n[shm.DropDeadTarget] + n[shm.DropMalformed] + n[shm.DropNoListener] +
		n[shm.DropResetLimited] + n[shm.DropOrphan] + n[shm.DropInvalidToken]
	if n[shm.PacketsReceived] != direct {
		s.t.Errorf("received %d, accounted for %d", n[shm.PacketsReceived], direct)
	}
	var pending uint64
	for _, m := range s.members {
		pending += uint64(packetqueue.Pending(s.segment.Queue(m.node.self.Slot)))
	}
	if in, out := n[shm.PacketsForwarded]+n[shm.ProbePushed], n[shm.PacketsPulled]+n[shm.DropStaleRecord]+n[shm.DropDeadQueue]+pending; in != out {
		s.t.Errorf("pushed %d, pulled or dropped or waiting %d", in, out)
	}
	if n[shm.PacketsPulled] != n[shm.PulledDelivered]+n[shm.PulledAccepted]+n[shm.DropLoop] {
		s.t.Errorf("pulled %d, delivered %d, accepted %d, loops %d", n[shm.PacketsPulled],
			n[shm.PulledDelivered], n[shm.PulledAccepted], n[shm.DropLoop])
	}
	for _, err := range s.segment.Check() {
		s.t.Errorf("check: %v", err)
	}
}

var serverCert = sync.OnceValues(func() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
})

func serverTLS(t testing.TB) *tls.Config {
	cert, err := serverCert()
	must(t, err)
	c := &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"echo"}}
	c.SetSessionTicketKeys([][32]byte{{5}})
	return c
}

func clientTLS() *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"echo"}, ServerName: "localhost"} //nolint:gosec // test
}

// client is a QUIC client with its own socket.
type client struct {
	t    testing.TB
	udp  *net.UDPConn
	tr   *quic.Transport
	conn *quic.Conn
	str  *quic.Stream
	n    byte
}

// dial opens a connection from local (may be empty) and a stream on it.
func (s *service) dial(network, local, remote string) *client {
	s.t.Helper()
	to, err := net.ResolveUDPAddr(network, remote)
	must(s.t, err)
	from := &net.UDPAddr{}
	if local != "" {
		from, err = net.ResolveUDPAddr(network, local)
		must(s.t, err)
	}
	udp, err := net.ListenUDP(network, from)
	must(s.t, err)
	c := &client{t: s.t, udp: udp, tr: &quic.Transport{Conn: udp}}
	s.t.Cleanup(c.close)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	c.conn, err = c.tr.Dial(ctx, to, clientTLS(), &quic.Config{MaxIdleTimeout: 20 * time.Second})
	must(s.t, err)
	c.str, err = c.conn.OpenStream()
	must(s.t, err)
	return c
}

// ping sends size bytes and expects them back.
func (c *client) ping(size int) {
	c.t.Helper()
	must(c.t, c.try(size))
}

func (c *client) try(size int) error {
	c.n++
	out := make([]byte, size)
	for i := range out {
		out[i] = byte(i) ^ c.n
	}
	deadline := time.Now().Add(5 * time.Second)
	c.str.SetDeadline(deadline)
	sent := make(chan error, 1)
	go func() {
		_, err := c.str.Write(out)
		sent <- err
	}()
	in := make([]byte, size)
	if _, err := io.ReadFull(c.str, in); err != nil {
		return err
	}
	if err := <-sent; err != nil {
		return err
	}
	for i := range in {
		if in[i] != out[i] {
			return errors.New("echo differs")
		}
	}
	return nil
}

func (c *client) close() {
	if c.conn != nil {
		_ = c.conn.CloseWithError(0, "")
	}
	_ = c.tr.Close()
	_ = c.udp.Close()
}

// address returns the address of a socket with another host part.
func address(t testing.TB, f *os.File, host string) string {
	t.Helper()
	c, err := net.FilePacketConn(f)
	must(t, err)
	defer c.Close()
	_, port, err := net.SplitHostPort(c.LocalAddr().String())
	must(t, err)
	return net.JoinHostPort(host, port)
}

// eventually waits for a condition that no event announces.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}
