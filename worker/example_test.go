package worker_test

import (
	"context"
	"crypto/tls"
	"io"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/holdfast-quic/holdfast/worker"
)

// A program of one's own: it echoes streams on the listener "public", whatever
// becomes of its supervisor's configuration and of its predecessors.
func Example() {
	worker.Main(serve)
}

func serve(_ context.Context, w *worker.Worker) error {
	tr, err := w.QUIC("public")
	if err != nil {
		return err
	}
	conf := &tls.Config{NextProtos: []string{"echo"}} // and a certificate
	conf.SetSessionTicketKeys(w.TicketKeys())
	ln, err := tr.Listen(conf, &quic.Config{MaxIdleTimeout: time.Minute})
	if err != nil {
		return err
	}
	go accept(ln)
	if err := w.Ready(); err != nil {
		return err
	}
	select {
	case <-w.Idle(): // drained, and every client is gone
	case <-w.Stopping(): // what is left is ended by the closers
	}
	return nil
}

func accept(ln *quic.Listener) {
	for {
		c, err := ln.Accept(context.Background())
		if err != nil {
			return
		}
		worker.ConnFromContext(c.Context()).SetCloser(func() { _ = c.CloseWithError(0, "goodbye") })
		go func() {
			for {
				str, err := c.AcceptStream(context.Background())
				if err != nil {
					return
				}
				go func() {
					_, _ = io.Copy(str, str)
					_ = str.Close()
				}()
			}
		}()
	}
}
