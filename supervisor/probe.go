package supervisor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-quic/holdfast/packetqueue"
)

// probeSlot is the slot in the token of the supervisor's own lanes. No
// geometry has so many.
const probeSlot = 1<<16 - 1

// startProbe proves the worker and posts the result.
func (s *Supervisor) startProbe(w *worker) {
	if !s.probeAside(w, func(pushed uint64, err error) event { return probedEvent{w, pushed, err} }) {
		s.after(0, func() { s.workerEvent(w, wkProbed) })
	}
}

// probeAside proves the worker's QUIC listeners, one after the other, in the
// background, and posts the event that result makes. It returns false if there
// is nothing to be proven.
func (s *Supervisor) probeAside(w *worker, result func(pushed uint64, err error) event) bool {
	targets := s.probeTargets(w)
	if s.opt.Probe == nil || w.gen.spec.NoProbe || len(targets) == 0 {
		return false
	}
	ctx, cancel := context.WithCancel(context.Background())
	w.stopProbe = cancel
	limit := w.gen.spec.ProbeTimeout
	s.background.Go(func() {
		defer cancel()
		var pushed uint64
		var err error
		for _, t := range targets {
			var n uint64
			n, err = s.probe(ctx, limit, t)
			pushed += n
			if err != nil {
				err = fmt.Errorf("probe of listener %q: %w", t.listener, err)
				break
			}
		}
		s.post(result(pushed, err))
	})
	return true
}

// probeTarget is one listener of one worker as the background sees it.
type probeTarget struct {
	listener string
	channel  uint8
	address  string // of the socket that the worker answers from
	region   []byte
	bell     *os.File
	token    uint64
	target   uint32
	foreign  bool
}

func (s *Supervisor) probeTargets(w *worker) []probeTarget {
	var out []probeTarget
	for _, want := range w.gen.wants {
		if !want.spec.QUIC {
			continue
		}
		for _, sock := range s.socketsFor(w.gen) {
			if sock.set.network == networkUDP && sock.set.listener == want.listener && w.sockets[sock.key()] {
				out = append(out, probeTarget{
					listener: want.spec.Name, channel: want.listener.id, address: sock.bound,
					region: s.seg.Queue(w.slot), bell: s.slots.doorbells[w.slot],
					token: packetqueue.Token(probeSlot, uint32(w.incarnation)), target: uint32(w.incarnation),
					foreign: want.spec.Foreign,
				})
				break
			}
		}
	}
	return out
}

func (s *Supervisor) probe(ctx context.Context, limit time.Duration, t probeTarget) (pushed uint64, err error) {
	conn, err := newQueueConn(t, s.env.monotonic)
	if err != nil {
		return 0, err
	}
	defer func() {
		conn.Close()
		pushed = conn.pushed.Load()
	}()
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%w: no answer within %v", ErrTimeout, limit))
	defer cancel()
	err = s.opt.Probe(ctx, ProbeTarget{Listener: t.listener, Conn: conn, Addr: conn.server, Foreign: t.foreign})
	if err != nil && errors.Is(err, context.DeadlineExceeded) {
		err = context.Cause(ctx)
	}
	return 0, err
}

// queueConn is a client's socket for one worker: packets go into its queue,
// answers come from its own socket over the network stack.
type queueConn struct {
	udp     *net.UDPConn
	server  *net.UDPAddr // where the client thinks that the server is
	monoNow func() int64
	bell    *os.File
	pushed  atomic.Uint64

	mu   sync.Mutex // a Producer belongs to one goroutine at a time
	lane *packetqueue.Producer
	rec  packetqueue.Record
}

func newQueueConn(t probeTarget, monoNow func() int64) (*queueConn, error) {
	server, err := netip.ParseAddrPort(t.address)
	if err != nil {
		return nil, err
	}
	host := server.Addr()
	if host.IsUnspecified() {
		host = netip.MustParseAddr("127.0.0.1")
		if server.Addr().Is6() {
			host = netip.IPv6Loopback()
		}
	}
	udp, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(host, 0)))
	if err != nil && server.Addr() == netip.IPv6Unspecified() {
		// IPv6 without a loopback address: the socket takes IPv4 too.
		host = netip.MustParseAddr("127.0.0.1")
		udp, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(host, 0)))
	}
	if err != nil {
		return nil, err
	}
	lane, err := packetqueue.Lease(t.region, t.token, t.channel)
	if err != nil {
		udp.Close()
		return nil, err
	}
	c := &queueConn{
		udp: udp, server: net.UDPAddrFromAddrPort(netip.AddrPortFrom(host, server.Port())),
		monoNow: monoNow, bell: t.bell, lane: lane,
	}
	c.rec.Target = t.target
	c.rec.Remote = endpoint(udp.LocalAddr().(*net.UDPAddr).AddrPort())
	c.rec.Local = endpoint(netip.AddrPortFrom(host, server.Port()))
	return c, nil
}

func endpoint(a netip.AddrPort) packetqueue.Endpoint {
	e := packetqueue.Endpoint{Port: a.Port(), Family: 6}
	ip := a.Addr().Unmap()
	if ip.Is4() {
		e.Family = 4
		four := ip.As4()
		copy(e.Addr[:], four[:])
		return e
	}
	e.Addr = ip.As16()
	if zone := ip.Zone(); zone != "" {
		if iface, err := net.InterfaceByName(zone); err == nil {
			e.Zone = uint32(iface.Index)
		}
	}
	return e
}

// WriteTo puts one packet into the worker's queue. A full queue loses it, as
// the network would.
func (c *queueConn) WriteTo(p []byte, _ net.Addr) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lane == nil {
		return 0, net.ErrClosed
	}
	c.rec.Payload, c.rec.Pushed = p, c.monoNow()
	err := c.lane.Push(&c.rec)
	c.rec.Payload = nil
	switch {
	case err == nil:
		c.pushed.Add(1)
	case errors.Is(err, packetqueue.ErrClosed):
		return 0, net.ErrClosed // the worker is dead
	case !errors.Is(err, packetqueue.ErrFull):
		return 0, err
	}
	if c.lane.NeedRing() {
		if err := packetqueue.Ring(c.bell); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// ReadFrom returns what the listener sends. Whoever else sends something to
// the port is not heard.
func (c *queueConn) ReadFrom(p []byte) (int, net.Addr, error) {
	for {
		n, from, err := c.udp.ReadFromUDP(p)
		if err != nil {
			return 0, nil, err
		}
		if from.Port == c.server.Port {
			return n, c.server, nil
		}
	}
}

func (c *queueConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lane != nil {
		c.lane.Release()
		c.lane = nil
	}
	return c.udp.Close()
}

func (c *queueConn) LocalAddr() net.Addr                { return c.udp.LocalAddr() }
func (c *queueConn) SetDeadline(t time.Time) error      { return c.udp.SetDeadline(t) }
func (c *queueConn) SetReadDeadline(t time.Time) error  { return c.udp.SetReadDeadline(t) }
func (c *queueConn) SetWriteDeadline(t time.Time) error { return c.udp.SetWriteDeadline(t) }

// SetReadBuffer and SetWriteBuffer leave the buffers as they are: a probe is a
// few packets. QUIC clients ask for larger ones and complain when they can't.
func (c *queueConn) SetReadBuffer(int) error  { return nil }
func (c *queueConn) SetWriteBuffer(int) error { return nil }
