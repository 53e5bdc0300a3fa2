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
