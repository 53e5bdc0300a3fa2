package worker

import (
	"context"
	"errors"

	"github.com/quic-go/quic-go"

	"github.com/holdfast-quic/holdfast/shm"
)

// CountRequest tells the supervisor that the program has answered a request,
// and whether it failed to do so as it should: an HTTP server counts what it
// answers with a status of 500 or more. While a canary is on trial, the share of
// failed requests of its workers is held against that of the others; see
// docs/operations.md. It costs two atomic additions at most.
func (w *Worker) CountRequest(failed bool) {
	w.node.counters.Add(shm.Requests, 1)
	if failed {
		w.node.counters.Add(shm.RequestErrors, 1)
	}
}

// handshakeFailed reports whether the end of a QUIC connection is that of a
// handshake which failed: neither side got through in time, or one of them
// did not like what TLS made of it (RFC 9001, section 4.8).
func handshakeFailed(ctx context.Context) bool {
	cause := context.Cause(ctx)
	if _, ok := errors.AsType[*quic.HandshakeTimeoutError](cause); ok {
		return true
	}
	e, ok := errors.AsType[*quic.TransportError](cause)
	return ok && e.ErrorCode.IsCryptoError()
}
