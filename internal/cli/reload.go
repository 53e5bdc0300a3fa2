package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-quic/holdfast/internal/admin"
)

// reloadTimeout is more than a reload takes that the supervisor has not given
// up.
const reloadTimeout = 5 * time.Minute

func (a *app) reloadCommand() *cobra.Command {
	var (
		timeout time.Duration
		asJSON  bool
	)
	c := &cobra.Command{
		Use:   "reload",
		Short: "Load the configuration again",
		Long: "Starts a new generation of workers with the configuration as it is now, and returns when it accepts connections. " +
			"When that fails at any step, the generation that serves goes on as it was, and the reason is printed.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.talk(cmd.Context(), timeout, func(ctx context.Context, c *admin.Client) error {
				return a.reload(ctx, c, asJSON)
			})
		},
	}
	c.Flags().DurationVar(&timeout, "timeout", reloadTimeout, "longest time to wait (0 = no limit); the reload itself goes on")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	a.instance.runtimeFlags(c)
	return c
}

func (a *app) reload(ctx context.Context, c *admin.Client, asJSON bool) error {
	end := a.progress(ctx, c, starting)
	data, err := c.Post(ctx, "/v1/reload", nil)
	end()
	if err != nil {
		return err
	}
	if asJSON {
		return a.printJSON(json.RawMessage(data))
	}
	var done struct {
		Generation uint32 `json:"generation"`
	}
	if err := json.Unmarshal(data, &done); err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	fmt.Fprintf(a.out, "generation %d is current\n", done.Generation)
	return nil
}
