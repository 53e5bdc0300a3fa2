package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-quic/holdfast/internal/admin"
)

func (a *app) checkSegmentCommand() *cobra.Command {
	var (
		timeout time.Duration
		asJSON  bool
	)
	c := &cobra.Command{
		Use:   "check-segment",
		Short: "Verify every invariant of the shared segment of a running instance",
		Long: "Has the supervisor verify the connection-ID table, the directory and the packet queues while they are in use. " +
			"Every fault is printed; with any, the exit code is 1.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.talk(cmd.Context(), timeout, func(ctx context.Context, c *admin.Client) error {
				faults, err := c.CheckSegment(ctx)
				if err != nil {
					return err
				}
				return a.printFaults(faults, asJSON)
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().DurationVar(&timeout, "timeout", answerTimeout, "longest time to wait (0 = no limit)")
	a.instance.runtimeFlags(c)
	return c
}

func (a *app) printFaults(faults []string, asJSON bool) error {
	if asJSON {
		if err := a.printJSON(map[string]any{"ok": len(faults) == 0, "faults": faults}); err != nil {
			return err
		}
	} else {
		for _, f := range faults {
			fmt.Fprintln(a.out, f)
		}
	}
	if len(faults) > 0 {
		return fmt.Errorf("the segment has %s", count(len(faults), "fault"))
	}
	if !asJSON {
		fmt.Fprintln(a.out, "the segment is sound")
	}
	return nil
}
