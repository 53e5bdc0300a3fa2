package kit

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
)

// errClosedByServer is the cause of a TCP connection's end without a reset.
var errClosedByServer = errors.New("closed by server")

// tcpSession is one TLS connection over TCP with HTTP/1.1 or HTTP/2. It never
// reconnects.
type tcpSession struct {
	transport *http.Transport

	mu   sync.Mutex
	conn net.Conn // handed out once
	gone chan struct{}
	err  error
}

// dialTCP connects with exactly the given protocol.
func dialTCP(ctx context.Context, o ClientOptions, protocol string) (session, error) {
	conf := o.tls()
	conf.NextProtos = []string{protocol}
	ctx, cancel := context.WithTimeout(ctx, DialTimeout)
	defer cancel()
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", o.Server)
	if err != nil {
		return nil, err
	}
	s := &tcpSession{gone: make(chan struct{})}
	tc := tls.Client(&watchedConn{Conn: raw, session: s}, conf)
	if err := tc.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	if got := tc.ConnectionState().NegotiatedProtocol; got != protocol {
		return nil, errors.Join(fmt.Errorf("server chose %q instead of %q", got, protocol), raw.Close())
	}
	s.conn = tc
	s.transport = &http.Transport{
		TLSClientConfig:     conf,
		DialTLSContext:      s.take,
		MaxConnsPerHost:     1,
		MaxIdleConnsPerHost: 1,
		Protocols:           new(http.Protocols),
	}
	s.transport.Protocols.SetHTTP1(protocol == "http/1.1")
	s.transport.Protocols.SetHTTP2(protocol == "h2")
	return s, nil
}

// take gives the one connection to the transport; there is no second.
func (s *tcpSession) take(context.Context, string, string) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.conn
	s.conn = nil
	if c == nil {
		// The first one may not be used any more, for example after GOAWAY.
		s.endLocked(errClosedByServer)
		return nil, errClosedByServer
	}
	return c, nil
}

func (s *tcpSession) errLocked() error {
	if s.err == nil {
		return errClosedByServer
	}
	return s.err
}

func (s *tcpSession) get(ctx context.Context, path string) (Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://localhost"+path, nil)
	if err != nil {
		return Response{}, err
	}
	resp, err := s.transport.RoundTrip(req)
	if err != nil {
		return Response{}, err
	}
	return readResponse(resp)
}

func (s *tcpSession) lost() <-chan struct{} { return s.gone }

func (s *tcpSession) cause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.errLocked()
}

func (s *tcpSession) close() {
	s.transport.CloseIdleConnections()
	s.mu.Lock()
	c := s.conn
	s.mu.Unlock()
	if c != nil {
		c.Close()
	}
}

// end notes that the connection is no more.
func (s *tcpSession) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked(err)
}

func (s *tcpSession) endLocked(err error) {
	select {
	case <-s.gone:
	default:
		s.err = err
		close(s.gone)
	}
}

// watchedConn tells its session when the other side ends it.
type watchedConn struct {
	net.Conn
	session *tcpSession
}

// Read implements net.Conn.
func (c *watchedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil {
		if ne, ok := errors.AsType[net.Error](err); !ok || !ne.Timeout() {
			c.session.end(err)
		}
	}
	return n, err
}

// Close implements net.Conn.
func (c *watchedConn) Close() error {
	c.session.end(net.ErrClosed)
	return c.Conn.Close()
}
