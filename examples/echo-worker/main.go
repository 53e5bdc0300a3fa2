// Echo-worker is a worker of one's own for holdfast: it echoes streams over
// QUIC, under an ALPN name of its own. Its connections outlive reloads and
// upgrades of this program; nothing in it has to do with that.
package main

import (
	"context"
	"crypto/tls"
	"io"

	"github.com/holdfast-quic/holdfast/config"
	"github.com/holdfast-quic/holdfast/worker"
	"github.com/quic-go/quic-go"
)

// version is told apart by a build: -ldflags "-X main.version=2".
var version = "1"

func main() { worker.Main(serve) }

func serve(ctx context.Context, w *worker.Worker) error {
	conf, err := config.FromPayload(w.Config()) // holdfast.yaml and its certificates
	if err != nil {
		return err
	}
	for _, l := range conf.Listeners {
		certs, err := l.KeyPairs()
		if err != nil {
			return err
		}
		tlsConf := &tls.Config{NextProtos: []string{"echo/" + version, "echo"}, Certificates: certs}
		tlsConf.SetSessionTicketKeys(w.TicketKeys()) // clients resume with any generation
		tr, err := w.QUIC(l.Name)
		if err != nil {
			return err
		}
		ln, err := tr.Listen(tlsConf, &quic.Config{MaxIdleTimeout: l.QUIC.IdleTimeout})
		if err != nil {
			return err
		}
		go accept(ctx, ln)
	}
	if err := w.Ready(); err != nil {
		return err
	}
	select {
	case <-w.Idle(): // no longer current, and the last connection has ended
	case <-w.Stopping(): // the limit of a drain, or a stop
	}
	return nil
}

func accept(ctx context.Context, ln *quic.Listener) {
	for conn, err := ln.Accept(ctx); err == nil; conn, err = ln.Accept(ctx) {
		worker.ConnFromContext(conn.Context()).SetCloser(func() { _ = conn.CloseWithError(0, "goodbye") })
		go func() {
			for stream, err := conn.AcceptStream(ctx); err == nil; stream, err = conn.AcceptStream(ctx) {
				go func() { _, _ = io.Copy(stream, stream); _ = stream.Close() }()
			}
		}()
	}
}
