package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-quic/holdfast/internal/admin"
)

// stopPoll is how often stop looks whether the supervisor is gone.
const stopPoll = 50 * time.Millisecond

func (a *app) stopCommand() *cobra.Command {
	var (
		timeout time.Duration
		fast    bool
	)
	c := &cobra.Command{
		Use:   "stop [--fast]",
		Short: "Stop the instance",
		Long: "Stops the supervisor and all workers, and returns when they are gone. Clients are told goodbye and have until the " +
			"configured stop timeout to finish; with --fast they have about two seconds.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.talk(cmd.Context(), timeout, func(ctx context.Context, c *admin.Client) error {
				return a.stop(ctx, c, fast)
			})
		},
	}
	c.Flags().BoolVar(&fast, "fast", false, "do not wait for clients")
	c.Flags().DurationVar(&timeout, "timeout", 0, "longest time to wait (0 = no limit); the stop itself goes on")
	a.instance.runtimeFlags(c)
	return c
}

func (a *app) stop(ctx context.Context, c *admin.Client, fast bool) error {
	end := a.progress(ctx, c, leaving)
	defer end()
	err := c.Stop(ctx, fast)
	if _, refused := errors.AsType[*admin.Error](err); refused || errors.Is(err, admin.ErrNotRunning) || ctx.Err() != nil {
		return err
	}
	// Any other error means that it ended before it could answer.
	for {
		_, err := c.Status(ctx)
		if errors.Is(err, admin.ErrNotRunning) {
			end()
			fmt.Fprintln(a.out, "stopped")
			return nil
		}
		if err := sleep(ctx, stopPoll); err != nil {
			return err
		}
	}
}
