package kit

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"
)

// Direction of a packet through a relay.
type Direction int

// Directions.
const (
	ToServer Direction = iota
	ToClient
)

// Impairment is what a relay does to the packets of one direction. All
// chances are between 0 and 1.
type Impairment struct {
	Drop      float64       // chance that a packet vanishes
	Duplicate float64       // chance that it arrives twice
	Reorder   float64       // chance that it is held for ReorderBy, so later ones overtake it
	ReorderBy time.Duration // default 5 ms
	Delay     time.Duration // added to every packet
	Jitter    time.Duration // up to this much more, at random
}

// Packet is one datagram on its way through a relay. A filter may change its
// bytes.
type Packet struct {
	Direction Direction
	Client    netip.AddrPort
	N         int // number of the packet in its direction and mapping, from 0
	Data      []byte
}

// Fate is what a filter decides about a packet.
type Fate struct {
	Drop  bool
	Delay time.Duration
	Until <-chan struct{} // hold it back until this is closed
	Times int             // copies to send; 0 is one
}

// RelayOptions configure a relay; the zero value passes everything on.
type RelayOptions struct {
	Listen   string // front address; default 127.0.0.1:0
	Seed     uint64 // of the random choices
	ToServer Impairment
	ToClient Impairment
	// Filter decides about each packet before the impairments do. It is
	// called by one goroutine per mapping and direction.
	Filter func(p Packet) Fate
}

// Relay passes datagrams between clients and one server, as a NAT does: each
// client has a port of its own towards the server.
type Relay struct {
	server  *net.UDPAddr
	front   *net.UDPConn
	options RelayOptions

	mu       sync.Mutex
	random   *rand.Rand
	mappings map[netip.AddrPort]*mapping
	closed   bool
	wg       sync.WaitGroup // readers
	stop     chan struct{}
}

// mapping is the state of one client.
type mapping struct {
	client   netip.AddrPort
	upstream *net.UDPConn // towards the server; replaced by Rebind
	sent     int          // owned by the front reader
	returned int          // owned by the upstream reader
}

// StartRelay runs a relay in front of server until the test ends.
func StartRelay(t testing.TB, server string, o RelayOptions) *Relay {
	t.Helper()
	addr, err := net.ResolveUDPAddr("udp", server)
	if err != nil {
		t.Fatal(err)
	}
	if o.Listen == "" {
		o.Listen = "127.0.0.1:0"
	}
	listen, err := net.ResolveUDPAddr("udp", o.Listen)
	if err != nil {
		t.Fatal(err)
	}
	front, err := net.ListenUDP("udp", listen)
	if err != nil {
		t.Fatal(err)
	}
	front.SetReadBuffer(4 << 20)
	r := &Relay{
		server: addr, front: front, options: o,
		random:   rand.New(rand.NewPCG(o.Seed, 1)),
		mappings: map[netip.AddrPort]*mapping{},
		stop:     make(chan struct{}),
	}
	r.wg.Go(r.readFront)
	t.Cleanup(r.Close)
	return r
}

// Addr is where clients connect to.
func (r *Relay) Addr() string { return r.front.LocalAddr().String() }

// Set replaces the impairments.
func (r *Relay) Set(toServer, toClient Impairment) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.options.ToServer, r.options.ToClient = toServer, toClient
}

// Rebind gives every client another port towards the server.
func (r *Relay) Rebind() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.mappings {
		up, err := r.dial()
		if err != nil {
			return err
		}
		old := m.upstream
		m.upstream = up
		r.wg.Go(func() { r.readUpstream(m, up) })
		old.Close() // ends its reader
	}
	return nil
}

// Close ends the relay; packets held back are dropped.
func (r *Relay) Close() {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return
	}
	r.closed = true
	close(r.stop)
	r.front.Close()
	for _, m := range r.mappings {
		m.upstream.Close()
	}
	r.mu.Unlock()
	r.wg.Wait()
}

func (r *Relay) dial() (*net.UDPConn, error) {
	c, err := net.DialUDP("udp", nil, r.server)
	if err == nil {
		c.SetReadBuffer(1 << 20)
	}
	return c, err
}

func (r *Relay) readFront() {
	buf := make([]byte, 65535)
	for {
		n, client, err := r.front.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		m, err := r.mapping(client)
		if err != nil {
			return
		}
		p := Packet{Direction: ToServer, Client: client, N: m.sent, Data: append([]byte(nil), buf[:n]...)}
		m.sent++
		r.pass(p, func() {
			r.mu.Lock()
			up := m.upstream
			r.mu.Unlock()
			up.Write(p.Data) // refused by a dead server: the network would lose it too
		})
	}
}

func (r *Relay) readUpstream(m *mapping, up *net.UDPConn) {
	buf := make([]byte, 65535)
	for {
		n, err := up.Read(buf)
		if err != nil {
			r.mu.Lock()
			gone := r.closed || m.upstream != up
			r.mu.Unlock()
			if gone {
				return
			}
			continue // an ICMP error of a server that is away for the moment
		}
		p := Packet{Direction: ToClient, Client: m.client, N: m.returned, Data: append([]byte(nil), buf[:n]...)}
		m.returned++
		r.pass(p, func() { r.front.WriteToUDPAddrPort(p.Data, m.client) })
	}
}

func (r *Relay) mapping(client netip.AddrPort) (*mapping, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, net.ErrClosed
	}
	if m := r.mappings[client]; m != nil {
		return m, nil
	}
	up, err := r.dial()
	if err != nil {
		return nil, err
	}
	m := &mapping{client: client, upstream: up}
	r.mappings[client] = m
	r.wg.Go(func() { r.readUpstream(m, up) })
	return m, nil
}

// pass sends a packet on after filter and impairments had their say.
func (r *Relay) pass(p Packet, send func()) {
	var fate Fate
	if r.options.Filter != nil {
		fate = r.options.Filter(p)
	}
	copies, delay := r.impair(p.Direction, fate)
	if copies == 0 {
		return
	}
	deliver := func() {
		for range copies {
			send()
		}
	}
	if delay == 0 && fate.Until == nil {
		deliver()
		return
	}
	r.wg.Go(func() {
		if fate.Until != nil {
			select {
			case <-fate.Until:
			case <-r.stop:
				return
			}
		}
		select {
		case <-time.After(delay):
			deliver()
		case <-r.stop:
		}
	})
}

func (r *Relay) impair(d Direction, f Fate) (copies int, delay time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	im := r.options.ToServer
	if d == ToClient {
		im = r.options.ToClient
	}
	if f.Drop || r.random.Float64() < im.Drop {
		return 0, 0
	}
	copies, delay = max(1, f.Times), f.Delay+im.Delay
	if r.random.Float64() < im.Duplicate {
		copies++
	}
	if im.Jitter > 0 {
		delay += time.Duration(r.random.Int64N(int64(im.Jitter)))
	}
	if r.random.Float64() < im.Reorder {
		if im.ReorderBy == 0 {
			im.ReorderBy = 5 * time.Millisecond
		}
		delay += im.ReorderBy
	}
	return copies, delay
}
