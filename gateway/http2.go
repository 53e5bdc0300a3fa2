package gateway

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// serveHTTP2 takes over a connection that negotiated HTTP/2 and returns when
// it is over. The connection gets an http.Server of its own, because GOAWAY is
// a matter of the server there and a matter of the connection here.
func (t *tcpServer) serveHTTP2(_ *http.Server, c *tls.Conn, h http.Handler) {
	t.connState(c, http.StateClosed) // it is no connection of HTTP/1.1
	setProtocol(c, ProtocolHTTP2)

	s := &http2Session{conn: c}
	defer t.drain.remove(s)
	over := make(chan struct{})
	var served sync.Once
	s.server = &http.Server{
		Handler:        t.handler,
		IdleTimeout:    tcpIdleTimeout,
		MaxHeaderBytes: maxHeaderBytes,
		ErrorLog:       t.server.ErrorLog,
		BaseContext:    func(net.Listener) context.Context { return handedOver(h) },
		ConnContext: func(ctx context.Context, _ net.Conn) context.Context {
			return withTraffic(ctx, &s.traffic)
		},
		ConnState: func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateActive:
				// Said for the first time once the connection can be told.
				served.Do(func() { t.drain.add(s, t.name) })
			case http.StateClosed:
				close(over)
			}
		},
	}
	one := newOneListener(c)
	defer one.Close()
	go func() { _ = s.server.Serve(one) }() // its error is that the listener ended
	<-over
}

// handedOver returns the context of a connection that net/http hands to the
// implementation of another protocol.
func handedOver(h http.Handler) context.Context {
	if b, ok := h.(interface{ BaseContext() context.Context }); ok {
		return b.BaseContext()
	}
	return context.Background()
}

// http2Session is a connection that speaks HTTP/2.
type http2Session struct {
	traffic
	conn   *tls.Conn
	server *http.Server
}

// goodbye has net/http send GOAWAY, first for no request and then for those
// after the last one that it has seen (RFC 9113, section 6.8), and close the
// connection once they are answered.
func (s *http2Session) goodbye() {
	s.leaving.Store(true)
	started, cancel := context.WithCancel(context.Background())
	cancel() // start it and do not wait
	go func() { _ = s.server.Shutdown(started) }()
}

// finished leaves the end to net/http, which knows what is still to be sent.
func (s *http2Session) finished(time.Time, time.Time, patience) bool { return false }

func (s *http2Session) close() { closeTCP(s.conn) }

// oneListener accepts one connection, then nothing until it is closed.
type oneListener struct {
	addr   net.Addr
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newOneListener(c net.Conn) *oneListener {
	l := &oneListener{addr: c.LocalAddr(), conns: make(chan net.Conn, 1), closed: make(chan struct{})}
	l.conns <- c
	return l
}

// Accept implements [net.Listener].
func (l *oneListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, io.EOF
	}
}

// Close implements [net.Listener].
func (l *oneListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements [net.Listener].
func (l *oneListener) Addr() net.Addr { return l.addr }
