package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	stdlog "log"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/holdfast-quic/holdfast/worker"
)

// Limits of TCP connections. There is none for how long a request or a
// response may take.
const (
	readHeaderTimeout = 30 * time.Second
	tcpIdleTimeout    = 5 * time.Minute
)

// tcpServer serves HTTP/1.1 and HTTP/2 on one listener.
type tcpServer struct {
	name    string       // of the listener
	server  *http.Server // accepts, shakes hands, and speaks HTTP/1.1
	handler http.Handler
	drain   *drainer

	mu    sync.Mutex
	conns map[net.Conn]*http1Session // of HTTP/1.1, or not known yet
}

func newTCPServer(l *Listener, h http.Handler, drain *drainer, log *zap.Logger) *tcpServer {
	t := &tcpServer{name: l.Name, handler: h, drain: drain, conns: map[net.Conn]*http1Session{}}
	t.server = &http.Server{
		Handler:           t.serveHTTP1(h),
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       tcpIdleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          debugLog(log),
		ConnContext:       t.connContext,
		ConnState:         t.connState,
		TLSNextProto:      map[string]func(*http.Server, *tls.Conn, http.Handler){},
	}
	if l.has(ProtocolHTTP2) {
		t.server.TLSNextProto[ProtocolHTTP2] = t.serveHTTP2
	}
	return t
}

// serve accepts until the listener or the server is closed.
func (t *tcpServer) serve(ln net.Listener, conf *tls.Config) error {
	err := t.server.Serve(tls.NewListener(ln, conf))
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// close ends what is left.
func (t *tcpServer) close() { _ = t.server.Close() }

// connContext registers a connection that was accepted.
func (t *tcpServer) connContext(ctx context.Context, c net.Conn) context.Context {
	s := &http1Session{conn: c}
	t.mu.Lock()
	t.conns[c] = s
	t.mu.Unlock()
	t.drain.add(s, t.name)
	return withTraffic(context.WithValue(ctx, http1Key{}, s), &s.traffic)
}

// connState follows a connection's state as net/http sees it.
func (t *tcpServer) connState(c net.Conn, state http.ConnState) {
	t.mu.Lock()
	s := t.conns[c]
	if state == http.StateClosed {
		delete(t.conns, c)
	}
	t.mu.Unlock()
	if s == nil {
		return
	}
	switch state {
	case http.StateClosed:
		t.drain.remove(s)
	case http.StateActive:
		setProtocol(c, ProtocolHTTP1)
	}
	s.state.Store(int32(state))
}

// serveHTTP1 is the handler of the accepting server: a connection that was
// hijacked (an upgrade passed on by a proxy route) is over when its handler
// is, and net/http says nothing about it.
func (t *tcpServer) serveHTTP1(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if s, ok := r.Context().Value(http1Key{}).(*http1Session); ok && s.hijacked() {
				t.connState(s.conn, http.StateClosed)
			}
		}()
		h.ServeHTTP(w, r)
	})
}

type http1Key struct{}

// http1Session is a connection that speaks HTTP/1.1, or has not said yet what
// it speaks.
type http1Session struct {
	traffic
	conn  net.Conn
	state atomic.Int32 // http.ConnState
}

// goodbye makes the next response the last one (RFC 9112, section 9.6).
func (s *http1Session) goodbye() { s.leaving.Store(true) }

// finished reports whether the connection has been idle for a while. A request
// that was on its way meanwhile is answered, with "Connection: close".
func (s *http1Session) finished(now, told time.Time, p patience) bool {
	switch http.ConnState(s.state.Load()) {
	case http.StateNew, http.StateIdle:
	default:
		return false
	}
	return s.requests.Load() == 0 && now.Sub(told) >= p.idle
}

func (s *http1Session) close() { closeTCP(s.conn) }

func (s *http1Session) hijacked() bool {
	return http.ConnState(s.state.Load()) == http.StateHijacked
}

// closeNotifyTimeout bounds how long the end of a TLS session may take to say.
const closeNotifyTimeout = 100 * time.Millisecond

// closeTCP ends a TLS session and its connection, without waiting for a
// client that does not read.
func closeTCP(c net.Conn) {
	if t, ok := c.(*tls.Conn); ok {
		timer := time.AfterFunc(closeNotifyTimeout, func() { _ = t.NetConn().Close() })
		defer timer.Stop()
	}
	_ = c.Close()
}

// debugLog is for net/http, which reports every client that breaks off a
// handshake.
func debugLog(log *zap.Logger) *stdlog.Logger {
	l, err := zap.NewStdLogAt(log, zap.DebugLevel)
	if err != nil {
		panic("gateway: debug is a level: " + err.Error())
	}
	return l
}

// setProtocol tells the worker what a TCP connection speaks, so that it can
// be listed, and how to end it.
func setProtocol(c net.Conn, protocol string) {
	if entry := worker.ConnFromNetConn(c); entry != nil {
		entry.SetProtocol(protocol)
		entry.SetCloser(func() { closeTCP(c) })
	}
}
