package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"

	"github.com/spf13/cobra"

	"github.com/holdfast-quic/holdfast/config"
	"github.com/holdfast-quic/holdfast/gateway"
	"github.com/holdfast-quic/holdfast/internal/build"
	"github.com/holdfast-quic/holdfast/internal/logline"
	"github.com/holdfast-quic/holdfast/worker"
)

func (a *app) workerCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "worker",
		Short:  "Serve connections; started by the supervisor only",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			code := worker.Run(worker.Options{Version: build.Version(), BuildID: build.ID()}, serve)
			if code == exitDone {
				return nil
			}
			return &exitError{code, errSilent} // it has said why
		},
	}
}

// serve is the built-in worker.
func serve(ctx context.Context, w *worker.Worker) error {
	var p payload
	if json.Unmarshal(w.Config(), &p) != nil {
		return errPayload // the text of the error might show a key
	}
	level, err := parseLevel(p.LogLevel)
	if err != nil {
		return err
	}
	w.SetLogLevel(level)
	if err := w.SetLogFormat(cmp.Or(p.LogFormat, logline.JSON)); err != nil {
		return err
	}
	if p.LogPath != config.LogStderr {
		// The logger, the runtime and other people's packages write to
		// standard error; all of it belongs into the log.
		p.Gateway.ReopenLogs = func() error { return redirectStderr(p.LogPath) }
		if err := p.Gateway.ReopenLogs(); err != nil {
			return err
		}
	}
	return gateway.Serve(ctx, w, p.Gateway)
}

var errPayload = errors.New("read worker payload: it is none of this program's")
