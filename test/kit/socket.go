package kit

import (
	"errors"
	"net"
	"sync"
	"time"
)

// Socket is a UDP socket that can be exchanged under a running QUIC
// connection: to the server the client has a new port, as behind a NAT that
// forgot its mapping, and the client knows nothing of it. It hides the system
// socket from quic-go, so segmentation offload stays off and every packet
// leaves from the socket of the moment.
//
// One goroutine may read; writes and Rebind may come from any.
type Socket struct {
	local string // address to bind, port 0

	mu       sync.Mutex
	conn     *net.UDPConn
	deadline time.Time
	closed   bool
}

// OpenSocket binds a socket on a free port of the local IP address ("" for
// 127.0.0.1).
func OpenSocket(local string) (*Socket, error) {
	if local == "" {
		local = "127.0.0.1"
	}
	s := &Socket{local: net.JoinHostPort(local, "0")}
	c, err := s.open()
	if err != nil {
		return nil, err
	}
	s.conn = c
	return s, nil
}

func (s *Socket) open() (*net.UDPConn, error) {
	addr, err := net.ResolveUDPAddr("udp", s.local)
	if err != nil {
		return nil, err
	}
	return net.ListenUDP("udp", addr)
}

// Rebind moves the socket to another free port. Packets that were on the way
// to the old one are lost.
func (s *Socket) Rebind() error {
	c, err := s.open()
	if err != nil {
		return err
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return errors.Join(net.ErrClosed, c.Close())
	}
	old := s.conn
	s.conn = c
	c.SetReadDeadline(s.deadline)
	s.mu.Unlock()
	return old.Close() // wakes the reader, which goes on with the new one
}

// RebindTo is Rebind to another local IP address.
func (s *Socket) RebindTo(local string) error {
	s.mu.Lock()
	s.local = net.JoinHostPort(local, "0")
	s.mu.Unlock()
	return s.Rebind()
}

func (s *Socket) current() (*net.UDPConn, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn, s.closed
}

// ReadFrom implements net.PacketConn.
func (s *Socket) ReadFrom(b []byte) (int, net.Addr, error) {
	for {
		c, _ := s.current()
		n, addr, err := c.ReadFrom(b)
		if err == nil {
			return n, addr, nil
		}
		if now, closed := s.current(); now != c && !closed {
			continue
		}
		return n, addr, err
	}
}

// WriteTo implements net.PacketConn.
func (s *Socket) WriteTo(b []byte, addr net.Addr) (int, error) {
	for {
		c, _ := s.current()
		n, err := c.WriteTo(b, addr)
		if err == nil {
			return n, nil
		}
		if now, closed := s.current(); now != c && !closed {
			continue
		}
		return n, err
	}
}

// Close implements net.PacketConn.
func (s *Socket) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return s.conn.Close()
}

// LocalAddr implements net.PacketConn.
func (s *Socket) LocalAddr() net.Addr {
	c, _ := s.current()
	return c.LocalAddr()
}

// SetReadDeadline implements net.PacketConn.
func (s *Socket) SetReadDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deadline = t
	return s.conn.SetReadDeadline(t)
}

// SetDeadline implements net.PacketConn; only the read side has one.
func (s *Socket) SetDeadline(t time.Time) error { return s.SetReadDeadline(t) }

// SetWriteDeadline implements net.PacketConn; UDP writes do not wait.
func (s *Socket) SetWriteDeadline(time.Time) error { return nil }
