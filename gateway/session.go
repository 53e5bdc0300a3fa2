package gateway

import (
	"context"
	"sync/atomic"
)

// traffic is what the handlers of a connection's requests and its session
// tell each other.
type traffic struct {
	requests atomic.Int64 // being answered
	leaving  atomic.Bool  // goodbye was said
	// confirmed is closed when the handshake is complete; nil = it always is.
	confirmed <-chan struct{}
}

// awaitConfirmed waits until what the client sends can't be a replay: a
// handshake that somebody recorded can be sent again with its 0-RTT data, in
// this process and in any other that has the ticket keys, but it can't be
// completed (RFC 8470, section 3). False means that the context ended first.
func (t *traffic) awaitConfirmed(ctx context.Context) bool {
	if t.confirmed == nil {
		return true
	}
	select {
	case <-t.confirmed:
		return true
	case <-ctx.Done():
		return false
	}
}

type trafficKey struct{}

func withTraffic(ctx context.Context, t *traffic) context.Context {
	return context.WithValue(ctx, trafficKey{}, t)
}

// trafficFrom returns nil for a request of nobody's connection.
func trafficFrom(ctx context.Context) *traffic {
	t, _ := ctx.Value(trafficKey{}).(*traffic)
	return t
}
