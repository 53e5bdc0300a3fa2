package worker

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
	"github.com/holdfast-quic/holdfast/shm"
)

// Kinds of connections, as they stand in the connection list.
const (
	kindQUIC = "quic"
	kindTCP  = "tcp"
)

// Conn is a live connection as the operator sees it in the connection list.
// Its methods may be called by any goroutine.
type Conn struct {
	number   uint64
	kind     string
	listener string
	remote   net.Addr
	local    net.Addr
	since    time.Time
	protocol atomic.Pointer[string]
	closer   atomic.Pointer[func()]
}

// SetProtocol names what the connection speaks, once that is known; by custom
// the ALPN protocol.
func (c *Conn) SetProtocol(alpn string) { c.protocol.Store(&alpn) }

// SetCloser says how to end the connection in order when the operator asks for
// it or the worker has to end. f must not wait for the peer.
func (c *Conn) SetCloser(f func()) { c.closer.Store(&f) }

type connKey struct{}

// ConnFromContext returns the connection that a context belongs to: that of a
// quic.Conn or one of its streams, or one made by ContextWithConn. Nil if it
// belongs to none.
func ConnFromContext(ctx context.Context) *Conn {
	c, _ := ctx.Value(connKey{}).(*Conn)
	return c
}

// ContextWithConn returns a context that belongs to c.
func ContextWithConn(ctx context.Context, c *Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// ConnFromNetConn returns the connection behind a net.Conn that a listener of
// TCP accepted, also through TLS. Nil if it is another.
func ConnFromNetConn(c net.Conn) *Conn {
	for {
		switch conn := c.(type) {
		case *tcpConn:
			return conn.entry
		case *tls.Conn:
			c = conn.NetConn()
		case interface{ NetConn() net.Conn }:
			c = conn.NetConn()
		default:
			return nil
		}
	}
}

// registry is the list of live connections of a worker.
type registry struct {
	node *node
	// empty gets a value whenever the last connection has ended.
	empty chan struct{}

	mu    sync.Mutex
	conns map[uint64]*Conn
	next  uint64
	quic  uint64
	tcp   uint64
}

func newRegistry(n *node) *registry {
	return &registry{node: n, empty: make(chan struct{}, 1), conns: map[uint64]*Conn{}}
}

// add registers a connection.
func (r *registry) add(kind, listener string, remote, local net.Addr) *Conn {
	c := &Conn{kind: kind, listener: listener, remote: remote, local: local, since: time.Now()}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next++
	c.number = r.next
	r.conns[c.number] = c
	if kind == kindQUIC {
		r.quic++
		r.node.counters.Add(shm.QUICAccepted, 1)
	} else {
		r.tcp++
		r.node.counters.Add(shm.TCPAccepted, 1)
	}
	r.publish()
	return c
}

// remove takes a connection out. A second time it does nothing.
func (r *registry) remove(c *Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.conns[c.number]; !ok {
		return
	}
	delete(r.conns, c.number)
	if c.kind == kindQUIC {
		r.quic--
	} else {
		r.tcp--
	}
	r.publish()
	if len(r.conns) == 0 {
		select {
		case r.empty <- struct{}{}:
		default:
		}
	}
}

// publish shows the gauges in the directory. The caller holds mu, so that an
// older number never overwrites a newer one.
func (r *registry) publish() {
	r.node.directory.SetConns(r.node.self.Slot, r.quic, r.tcp)
}

// restate shows the gauges once more; see node.beat.
func (r *registry) restate() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.publish()
}

// quicContext is the Transport's ConnContext: it registers a connection until
// its context ends.
func (r *registry) quicContext(ctx context.Context, listener string, remote, local net.Addr) context.Context {
	c := r.add(kindQUIC, listener, remote, local)
	context.AfterFunc(ctx, func() {
		if handshakeFailed(ctx) {
			r.node.counters.Add(shm.HandshakesFailed, 1)
		}
		r.remove(c)
	})
	return ContextWithConn(ctx, c)
}

// counts returns the gauges.
func (r *registry) counts() (quic, tcp uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.quic, r.tcp
}

func (r *registry) noQUIC() bool {
	quic, _ := r.counts()
	return quic == 0
}

// list returns the connections, oldest first.
func (r *registry) list() []lifeline.ConnInfo {
	r.mu.Lock()
	conns := make([]*Conn, 0, len(r.conns))
	for _, c := range r.conns {
		conns = append(conns, c)
	}
	r.mu.Unlock()
	slices.SortFunc(conns, func(a, b *Conn) int { return cmp.Compare(a.number, b.number) })
	out := make([]lifeline.ConnInfo, len(conns))
	for i, c := range conns {
		out[i] = lifeline.ConnInfo{
			ID: r.id(c), Kind: c.kind, Listener: c.listener,
			Remote: c.remote.String(), Local: c.local.String(), Since: c.since,
		}
		if p := c.protocol.Load(); p != nil {
			out[i].Protocol = *p
		}
	}
	return out
}

func (r *registry) id(c *Conn) string {
	return fmt.Sprintf("%d.%d.%d", r.node.self.Slot, r.node.self.Incarnation, c.number)
}

// closer returns what ends the connection with the given ID.
func (r *registry) closer(id string) (func(), error) {
	r.mu.Lock()
	var found *Conn
	for _, c := range r.conns {
		if r.id(c) == id {
			found = c
			break
		}
	}
	r.mu.Unlock()
	if found == nil {
		return nil, fmt.Errorf("%s: %w", id, ErrNoConn)
	}
	f := found.closer.Load()
	if f == nil {
		return nil, ErrNoCloser
	}
	return *f, nil
}

// endAll ends all connections that say how.
func (r *registry) endAll() {
	r.mu.Lock()
	conns := make([]*Conn, 0, len(r.conns))
	for _, c := range r.conns {
		conns = append(conns, c)
	}
	r.mu.Unlock()
	for _, c := range conns {
		if f := c.closer.Load(); f != nil {
			(*f)() // without one its end is that of the process
		}
	}
}
