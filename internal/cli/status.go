package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-quic/holdfast/internal/admin"
)

// watchPeriod is the time between two views of status --watch.
const watchPeriod = time.Second

func (a *app) statusCommand() *cobra.Command {
	var (
		asJSON, watch bool
		timeout       time.Duration
	)
	c := &cobra.Command{
		Use:   "status",
		Short: "Show generations, workers, connections and counters",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.talk(cmd.Context(), 0, func(ctx context.Context, c *admin.Client) error {
				for {
					if err := a.showStatus(ctx, c, asJSON, watch, timeout); err != nil || !watch {
						return err
					}
					if err := sleep(ctx, watchPeriod); err != nil {
						return err
					}
				}
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().BoolVarP(&watch, "watch", "w", false, "show it again every second until interrupted")
	c.Flags().DurationVar(&timeout, "timeout", answerTimeout, "longest time to wait for an answer (0 = no limit)")
	a.instance.runtimeFlags(c)
	return c
}

func (a *app) showStatus(ctx context.Context, c *admin.Client, asJSON, watch bool, timeout time.Duration) error {
	ctx, cancel := limit(ctx, timeout)
	defer cancel()
	data, err := c.Get(ctx, "/v1/status")
	if err != nil {
		return answered(err, timeout)
	}
	if asJSON {
		// As it came, one object per line when there are several.
		var out bytes.Buffer
		if watch {
			err = json.Compact(&out, data)
		} else {
			err = json.Indent(&out, data, "", "  ")
		}
		if err != nil {
			return fmt.Errorf("read status: %w", err)
		}
		_, err = fmt.Fprintln(a.out, string(bytes.TrimSpace(out.Bytes())))
		return err
	}
	s := new(admin.Status)
	if err := json.Unmarshal(data, s); err != nil {
		return fmt.Errorf("read status: %w", err)
	}
	var out bytes.Buffer
	if watch && isTerminal(a.out) {
		out.WriteString("\x1b[H\x1b[2J") // home, clear
	}
	printStatus(&out, s, time.Now())
	_, err = a.out.Write(out.Bytes())
	return err
}
