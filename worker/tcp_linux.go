package worker

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
)

// tcpListener accepts from the listening sockets that the supervisor says are
// this worker's to accept from. While there are none, Accept waits. The
// sockets are shared with other processes; this end only ever takes
// connections out of them.
type tcpListener struct {
	listener lifeline.Listener
	registry *registry
	gate     *gate
	addr     net.Addr

	mu   sync.Mutex // held by the one goroutine in Accept
	plan *plan
	next int // socket to try first
	turn turnTaker
}

var _ net.Listener = (*tcpListener)(nil)

func newTCPListener(l lifeline.Listener, r *registry, sockets []*socket) (*tcpListener, error) {
	g, err := newGate(func(err error) { r.node.warn("cannot watch a socket", l.Name, err) })
	if err != nil {
		return nil, err
	}
	local := *sockets[0].local.UDPAddr()
	return &tcpListener{
		listener: l, registry: r, gate: g, plan: newPlan(nil), turn: newTurnTaker(r.node, l.ID),
		addr: &net.TCPAddr{IP: local.IP, Port: local.Port, Zone: local.Zone},
	}, nil
}

// Accept returns the next connection. It waits while this worker is not to
// accept, until Close.
func (l *tcpListener) Accept() (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gate.begin()
	defer l.gate.end()
	for {
		var fd int
		var acceptErr error
		if err := l.gate.waiter.wait(func() look {
			if fd, acceptErr = l.try(); fd >= 0 || acceptErr != nil {
				return found
			}
			return quiet
		}); err != nil {
			return nil, net.ErrClosed
		}
		switch {
		case errors.Is(acceptErr, errNotOurTurn):
			time.Sleep(turnPause)
			continue
		case acceptErr == nil:
			if c, err := l.wrap(fd); err == nil {
				return c, nil
			}
			continue // gone before it was ours
		}
		// Out of descriptors or memory: the connection waits in the kernel.
		l.registry.node.warn("cannot accept", l.listener.Name, acceptErr)
		time.Sleep(acceptPause)
	}
}

// acceptPause is the pause after an accept that failed for want of resources.
const acceptPause = 50 * time.Millisecond

// try takes one connection from the sockets; -1 without an error: none waits.
// One that is another generation's turn to take gives errNotOurTurn.
func (l *tcpListener) try() (int, error) {
	if l.gate.changed(l.plan) {
		l.plan = l.gate.adopt()
	}
	n := len(l.plan.sockets)
	ticket, ok, waits := l.turn.take(l.plan.sockets)
	if !ok {
		if waits {
			return -1, errNotOurTurn
		}
		return -1, nil
	}
	for i := range n {
		s := l.plan.sockets[(l.next+i)%n]
		fd, _, err := unix.Accept4(s.fd, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		switch {
		case err == nil:
			l.next = (l.next + i + 1) % n
			l.turn.taken(ticket)
			return fd, nil
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE),
			errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ENOMEM):
			return -1, os.NewSyscallError("accept4", err)
		}
	}
	return -1, nil
}

// wrap makes a registered connection of a descriptor, which it takes over.
func (l *tcpListener) wrap(fd int) (net.Conn, error) {
	f := os.NewFile(uintptr(fd), "tcp")
	c, err := net.FileConn(f)
	f.Close()
	if err != nil {
		return nil, err
	}
	t, ok := c.(*net.TCPConn)
	if !ok {
		c.Close()
		return nil, net.UnknownNetworkError("not TCP")
	}
	entry := l.registry.add(kindTCP, l.listener.Name, t.RemoteAddr(), t.LocalAddr())
	conn := &tcpConn{TCPConn: t, entry: entry, registry: l.registry}
	entry.SetCloser(func() { conn.Close() })
	return conn, nil
}

// Close ends Accept and returns when nobody is in it any more. The listening
// sockets stay open for the other workers.
func (l *tcpListener) Close() error {
	err := l.gate.close()
	l.mu.Lock() // free once Accept has returned
	defer l.mu.Unlock()
	return err
}

// Addr returns the bound address.
func (l *tcpListener) Addr() net.Addr { return l.addr }

// tcpConn is a connection that is on the list until it is closed.
type tcpConn struct {
	*net.TCPConn
	entry    *Conn
	registry *registry
}

// Close closes the connection and takes it off the list.
func (c *tcpConn) Close() error {
	c.registry.remove(c.entry)
	return c.TCPConn.Close()
}
