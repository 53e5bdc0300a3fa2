package worker

import (
	"fmt"
	"net"
	"os"
	"slices"
	"sync"

	"github.com/quic-go/quic-go"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
)

const (
	networkUDP = "udp"
	networkTCP = "tcp"
)

// listener is one named listener of a worker with the sockets that it has.
type listener struct {
	info lifeline.Listener

	mu        sync.Mutex
	udp, tcp  side
	conn      *conn
	transport *quic.Transport
	accept    *tcpListener
}

// side is the sockets of one network and which of them are to be used.
type side struct {
	sockets []*socket
	wanted  []int // socket indices
}

// chosen returns the wanted sockets.
func (s *side) chosen() []*socket {
	var out []*socket
	for _, sock := range s.sockets {
		if slices.Contains(s.wanted, sock.index) {
			out = append(out, sock)
		}
	}
	return out
}

// put adds a socket or replaces what is known of it, and returns the one that
// it replaces.
func (s *side) put(sock *socket) (old *socket) {
	i := slices.IndexFunc(s.sockets, func(o *socket) bool { return o.index == sock.index })
	next := slices.Clone(s.sockets)
	if i < 0 {
		s.sockets = append(next, sock)
		return nil
	}
	old, next[i] = next[i], sock
	s.sockets = next
	return old
}

// drop takes a socket out and returns it.
func (s *side) drop(index int) *socket {
	i := slices.IndexFunc(s.sockets, func(o *socket) bool { return o.index == index })
	if i < 0 {
		return nil
	}
	old := s.sockets[i]
	s.sockets = slices.Delete(slices.Clone(s.sockets), i, i+1)
	return old
}

func (l *listener) side(network string) *side {
	if network == networkTCP {
		return &l.tcp
	}
	return &l.udp
}

// sockets returns all sockets of the listener. The caller holds mu.
func (l *listener) sockets() []*socket { return slices.Concat(l.udp.sockets, l.tcp.sockets) }

// addSocket takes a duplicate of f as one of the listener's sockets.
func (l *listener) addSocket(f *os.File, s lifeline.Socket) (changed <-chan struct{}, old *socket, err error) {
	sock, err := newSocket(f, s)
	if err != nil {
		return nil, nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	old = l.side(s.Network).put(sock)
	changed, err = l.applied(s.Network)
	return changed, old, err
}

// dropSocket takes a socket out. The caller closes it once changed is closed.
func (l *listener) dropSocket(s lifeline.Socket) (changed <-chan struct{}, old *socket, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old = l.side(s.Network).drop(s.Index)
	changed, err = l.applied(s.Network)
	return changed, old, err
}

// read makes the sockets with these indices the ones that are used, and
// returns channels that are closed once that is so.
func (l *listener) read(udp, tcp []int) []<-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	var changes []<-chan struct{}
	for network, wanted := range map[string][]int{networkUDP: udp, networkTCP: tcp} {
		s := l.side(network)
		if slices.Equal(s.wanted, wanted) {
			continue
		}
		s.wanted = wanted
		if changed, err := l.applied(network); err == nil {
			changes = append(changes, changed)
		}
	}
	return changes
}

var inForce = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// applied hands the present sockets to the conn or accepter, if there is one.
func (l *listener) applied(network string) (<-chan struct{}, error) {
	if network == networkTCP {
		if l.accept == nil {
			return inForce, nil
		}
		return l.accept.gate.set(l.tcp.chosen()), nil
	}
	if l.conn == nil {
		return inForce, nil
	}
	changed := l.conn.gate.set(l.udp.chosen())
	if len(l.udp.sockets) == 0 {
		return changed, nil // the last one stays in use for sending
	}
	return changed, l.conn.sender.use(l.udp.sockets)
}

// openConn returns the listener's conn, made on first use.
func (l *listener) openConn(n *node, bell int) (*conn, error) {
	if l.conn != nil {
		return l.conn, nil
	}
	c, err := newConn(n, l.info, l.udp.sockets, bell)
	if err != nil {
		return nil, err
	}
	c.gate.set(l.udp.chosen())
	l.conn = c
	return c, nil
}

// openTCP returns the listener's accepter, made on first use.
func (l *listener) openTCP(r *registry) (net.Listener, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.accept != nil {
		return l.accept, nil
	}
	if len(l.tcp.sockets) == 0 {
		return nil, fmt.Errorf("listener %s: TCP: %w", l.info.Name, errNoSocket)
	}
	t, err := newTCPListener(l.info, r, l.tcp.sockets)
	if err != nil {
		return nil, fmt.Errorf("listener %s: %w", l.info.Name, err)
	}
	t.gate.set(l.tcp.chosen())
	l.accept = t
	return t, nil
}

// close ends the use of all sockets and closes this process's descriptors.
func (l *listener) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.transport != nil {
		_ = l.transport.Close()
	}
	if l.conn != nil {
		_ = l.conn.Close()
	}
	if l.accept != nil {
		_ = l.accept.Close()
	}
	for _, s := range l.sockets() {
		s.close()
	}
	l.transport, l.conn, l.accept = nil, nil, nil
	l.udp, l.tcp = side{}, side{}
}
