package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	"go.uber.org/zap"

	"github.com/holdfast-quic/holdfast/worker"
)

// failedGrace is how long the goodbye may take when a listener fails.
const failedGrace = 2 * time.Second

// host is the part of a [worker.Worker] that the gateway lives on.
type host interface {
	QUIC(name string) (*quic.Transport, error)
	TCP(name string) (net.Listener, error)
	TicketKeys() [][32]byte
	Ready() error
	DrainOrders() <-chan worker.DrainOrder
	Serving() <-chan struct{}
	Stopping() <-chan struct{}
	Grace() time.Duration
	Idle() <-chan struct{}
	ReopenLogs() <-chan struct{}
	CountRequest(failed bool)
	Logger() *zap.Logger
}

// gateway is one running Serve.
type gateway struct {
	host   host
	drain  *drainer
	access *accessLog
	reopen func() error // may be nil
	log    *zap.Logger
	quic   []*quicServer
	tcp    []*tcpServer

	accepting     sync.WaitGroup
	stopAccepting context.CancelFunc
	failed        chan error // of the goroutines that accept
}

// serve runs a gateway on h until it is stopped, idle after a drain, or ctx
// ends.
func serve(ctx context.Context, h host, id identity, o Options) error {
	if err := o.validate(); err != nil {
		return err
	}
	g := &gateway{host: h, log: h.Logger(), reopen: o.ReopenLogs, failed: make(chan error, 2*len(o.Listeners))}
	g.drain = newDrainer(g.log)
	var err error
	if g.access, err = openAccessLog(o.AccessLog, id.Generation); err != nil {
		return err
	}
	proxies := newProxyPool(g.log)
	defer proxies.close()
	routes, err := newRouter(o.Routes, routeEnv{identity: id, proxies: proxies})
	if err != nil {
		return errors.Join(err, g.closeAccess())
	}
	accept, cancel := context.WithCancel(ctx)
	g.stopAccepting = cancel
	err = g.listen(accept, &o, routes)
	if err == nil {
		err = h.Ready()
	}
	if err == nil {
		err = g.run(ctx)
	}
	g.shut()
	return errors.Join(err, g.closeAccess())
}

func (g *gateway) closeAccess() error {
	if g.access == nil {
		return nil
	}
	return g.access.close()
}

// listen starts to accept on all listeners.
func (g *gateway) listen(ctx context.Context, o *Options, routes *router) error {
	for i := range o.Listeners {
		l := &o.Listeners[i]
		var h http.Handler = &handler{listener: l, routes: routes, access: g.access, count: g.host.CountRequest, log: g.log}
		if l.has(ProtocolHTTP3) {
			if err := g.listenQUIC(ctx, l, h); err != nil {
				return fmt.Errorf("listener %q: %w", l.Name, err)
			}
		}
		if l.tcp() {
			if err := g.listenTCP(l, h); err != nil {
				return fmt.Errorf("listener %q: %w", l.Name, err)
			}
		}
	}
	return nil
}

func (g *gateway) listenQUIC(ctx context.Context, l *Listener, h http.Handler) error {
	tr, err := g.host.QUIC(l.Name)
	if err != nil {
		return err
	}
	q := &quicServer{name: l.Name, handler: h, drain: g.drain, log: g.log}
	if err := listenQUIC(tr, l, q, g.host.TicketKeys()); err != nil {
		return err
	}
	g.quic = append(g.quic, q)
	g.accept(l.Name, func() error { return q.serve(ctx) })
	return nil
}

func (g *gateway) listenTCP(l *Listener, h http.Handler) error {
	certs, err := certificates(l)
	if err != nil {
		return err
	}
	ln, err := g.host.TCP(l.Name)
	if err != nil {
		return err
	}
	t := newTCPServer(l, h, g.drain, g.log)
	g.tcp = append(g.tcp, t)
	conf := tlsConfig(certs, g.host.TicketKeys(), tcpProtocols(l))
	g.accept(l.Name, func() error { return t.serve(ln, conf) })
	return nil
}

func (g *gateway) accept(name string, serve func() error) {
	g.accepting.Go(func() {
		if err := serve(); err != nil {
			g.failed <- fmt.Errorf("accept on listener %q: %w", name, err)
		}
	})
}

// run does what the supervisor orders until there is nothing left to do.
func (g *gateway) run(ctx context.Context) error {
	round := time.NewTimer(0) // runs while there is somebody to be told or closed
	defer round.Stop()
	var back <-chan struct{} // closed when a drain is taken back; nil: none
	for {
		select {
		case o := <-g.host.DrainOrders():
			back = g.host.Serving()
			g.drain.limit(o.Limits)
			if o.Mode == worker.DrainGoAway {
				g.drain.spread(o.Window)
			} else {
				g.drain.hold()
			}
			round.Reset(0)
		case <-back:
			back = nil
			g.drain.limit(nil)
			g.drain.hold()
			g.log.Info("current again")
		case <-g.drain.wake:
			round.Reset(0)
		case <-round.C:
			g.drain.round()
			if pause, ok := g.drain.pause(); ok {
				round.Reset(pause)
			}
		case <-g.host.ReopenLogs():
			g.reopenLogs()
		case <-g.host.Idle():
			return nil
		case <-g.host.Stopping():
			g.drain.stop(g.host.Grace(), ctx.Done())
			return nil
		case <-ctx.Done():
			g.drain.closeRest(moment(lastMoment))
			return nil
		case err := <-g.failed:
			g.drain.stop(failedGrace, ctx.Done())
			return err
		}
	}
}

func (g *gateway) reopenLogs() {
	var err error
	if g.reopen != nil {
		err = g.reopen()
	}
	if g.access != nil {
		err = errors.Join(err, g.access.reopen())
	}
	if err != nil {
		g.log.Error("a log goes on under its old name", zap.Error(err))
	}
}

// shut stops accepting, after the connections have ended: closing the
// listener of a transport refuses the handshakes that are under way (RFC 9000,
// section 20.1, CONNECTION_REFUSED).
func (g *gateway) shut() {
	for _, t := range g.tcp {
		t.close()
	}
	for _, q := range g.quic {
		// Waits for these handshakes, and nobody should wait for it: what
		// still hangs ends with the transport.
		go func() { _ = q.listener.Close() }()
	}
	g.stopAccepting()
	g.accepting.Wait()
}
