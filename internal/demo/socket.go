package demo

import (
	"errors"
	"net"
	"sync"
	"time"
)

// socket is a UDP socket whose port can change without its user's knowledge,
// as a NAT changes it.
type socket struct {
	mu     sync.Mutex
	conn   *net.UDPConn
	closed bool
}

func openSocket() (*socket, error) {
	conn, err := listenLoopback()
	if err != nil {
		return nil, err
	}
	return &socket{conn: conn}, nil
}

func listenLoopback() (*net.UDPConn, error) {
	return net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
}

// rebind goes on from another port. Packets on their way to the old one are
// lost, as they are behind a real NAT.
func (s *socket) rebind() error {
	next, err := listenLoopback()
	if err != nil {
		return err
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		next.Close()
		return net.ErrClosed
	}
	old := s.conn
	s.conn = next
	s.mu.Unlock()
	return old.Close()
}

func (s *socket) current() *net.UDPConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn
}

// ReadFrom implements [net.PacketConn].
func (s *socket) ReadFrom(p []byte) (int, net.Addr, error) {
	for {
		conn := s.current()
		n, addr, err := conn.ReadFrom(p)
		if errors.Is(err, net.ErrClosed) && s.current() != conn {
			continue
		}
		return n, addr, err
	}
}

// WriteTo implements [net.PacketConn].
func (s *socket) WriteTo(p []byte, addr net.Addr) (int, error) {
	for {
		conn := s.current()
		n, err := conn.WriteTo(p, addr)
		if errors.Is(err, net.ErrClosed) && s.current() != conn {
			continue
		}
		return n, err
	}
}

// Close implements [net.PacketConn].
func (s *socket) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return s.conn.Close()
}

// LocalAddr implements [net.PacketConn].
func (s *socket) LocalAddr() net.Addr { return s.current().LocalAddr() }

// SetDeadline implements [net.PacketConn].
func (s *socket) SetDeadline(t time.Time) error { return s.current().SetDeadline(t) }

// SetReadDeadline implements [net.PacketConn].
func (s *socket) SetReadDeadline(t time.Time) error { return s.current().SetReadDeadline(t) }

// SetWriteDeadline implements [net.PacketConn].
func (s *socket) SetWriteDeadline(t time.Time) error { return s.current().SetWriteDeadline(t) }
