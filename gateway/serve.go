package gateway

import (
	"context"
	"os"

	"github.com/holdfast-quic/holdfast/worker"
)

// Serve serves the options on the listeners of w until the worker is stopped,
// or drains and has no connection left, or ctx ends. It calls w.Ready once all
// listeners accept. An error means that it could not serve, or could not go
// on: ErrOptions, or one of the system's.
//
// It is the function for worker.Main:
//
//	worker.Main(func(ctx context.Context, w *worker.Worker) error {
//		return gateway.Serve(ctx, w, options)
//	})
func Serve(ctx context.Context, w *worker.Worker, o Options) error {
	id := identity{
		Generation:  w.Generation(),
		Slot:        w.Slot(),
		Incarnation: w.Incarnation(),
		PID:         os.Getpid(),
		ConfigHash:  w.ConfigHash(),
		Version:     o.Version,
	}
	return serve(ctx, w, id, o)
}
