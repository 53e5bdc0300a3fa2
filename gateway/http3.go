package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"go.uber.org/zap"

	"github.com/holdfast-quic/holdfast/worker"
)

// maxHeaderBytes bounds the header section of a request. It is a constant
// because clients remember it with their 0-RTT tickets: a later generation
// must not know a smaller one (RFC 9114, section 7.2.4.2).
const maxHeaderBytes = http.DefaultMaxHeaderBytes

// quicServer serves HTTP/3 on one transport.
type quicServer struct {
	name     string // of the listener
	listener *quic.EarlyListener
	handler  http.Handler
	drain    *drainer
	log      *zap.Logger
}

// listenQUIC starts to listen on the transport; serve accepts.
func listenQUIC(tr *quic.Transport, l *Listener, server *quicServer, keys [][32]byte) error {
	certs, err := certificates(l)
	if err != nil {
		return err
	}
	if l.QUIC.AlwaysRetry {
		tr.VerifySourceAddress = func(net.Addr) bool { return true }
	}
	server.listener, err = tr.ListenEarly(
		http3.ConfigureTLSConfig(tlsConfig(certs, keys, []string{ProtocolHTTP3})),
		&quic.Config{
			MaxIdleTimeout:     l.QUIC.IdleTimeout,
			KeepAlivePeriod:    l.QUIC.KeepAlive,
			MaxIncomingStreams: int64(l.QUIC.MaxIncomingStreams),
			Allow0RTT:          l.QUIC.Allow0RTT,
		})
	return err
}

// serve accepts until the listener is closed or ctx ends.
func (q *quicServer) serve(ctx context.Context) error {
	for {
		conn, err := q.listener.Accept(ctx)
		if err != nil {
			if errors.Is(err, quic.ErrServerClosed) || ctx.Err() != nil {
				return nil
			}
			return err
		}
		go q.serveConn(conn)
	}
}

// serveConn serves one connection until it is over. Each has an http3.Server
// of its own, because GOAWAY is a matter of the server there and a matter of
// the connection here.
func (q *quicServer) serveConn(conn *quic.Conn) {
	s := &http3Session{conn: conn}
	s.confirmed = conn.HandshakeComplete()
	s.server = &http3.Server{
		Handler:        q.handler,
		MaxHeaderBytes: maxHeaderBytes,
		Logger:         slog.New(slog.DiscardHandler),
		ConnContext: func(ctx context.Context, _ *quic.Conn) context.Context {
			q.drain.add(s, q.name) // the server counts the connection from here on, so it can be told
			return withTraffic(ctx, &s.traffic)
		},
	}
	if c := worker.ConnFromContext(conn.Context()); c != nil {
		c.SetProtocol(ProtocolHTTP3)
		c.SetCloser(s.close)
	}
	err := s.server.ServeQUICConn(conn)
	q.drain.remove(s)
	s.close()
	if err != nil {
		q.log.Debug("connection ended", zap.String("remote", conn.RemoteAddr().String()), zap.Error(err))
	}
}

// http3Session is a connection that speaks HTTP/3.
type http3Session struct {
	traffic
	conn   *quic.Conn
	server *http3.Server

	packets   uint64    // sent and received when last looked at
	quietFrom time.Time // since when that number is the same
}

// goodbye sends GOAWAY with the first request that will not be served
// (RFC 9114, section 5.2). Later ones are reset with H3_REQUEST_REJECTED,
// which tells the client that it may repeat them.
func (s *http3Session) goodbye() {
	s.leaving.Store(true)
	go func() { _ = s.server.Shutdown(context.WithoutCancel(s.conn.Context())) }() // returns when the connection is over
}

// finished reports whether no request is being answered and no packet has
// been sent or received for so long that whatever was sent has arrived: data
// in flight that is not acknowledged would be sent again within that time
// (RFC 9002, section 6.2). A request that crossed the GOAWAY has been rejected
// by then, and is repeated by the client elsewhere, rather than cut off.
func (s *http3Session) finished(now, _ time.Time, p patience) bool {
	if s.requests.Load() > 0 {
		s.quietFrom = time.Time{}
		return false
	}
	stats := s.conn.ConnectionStats()
	if packets := stats.PacketsSent + stats.PacketsReceived; s.quietFrom.IsZero() || packets != s.packets {
		s.packets, s.quietFrom = packets, now
		return false
	}
	pto := stats.SmoothedRTT + 4*stats.MeanDeviation
	return now.Sub(s.quietFrom) >= p.quiet+2*pto
}

// close sends CONNECTION_CLOSE with H3_NO_ERROR.
func (s *http3Session) close() {
	_ = s.conn.CloseWithError(quic.ApplicationErrorCode(http3.ErrCodeNoError), "")
}
