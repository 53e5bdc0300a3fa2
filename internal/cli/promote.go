package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-quic/holdfast/internal/admin"
)

func (a *app) promoteCommand() *cobra.Command {
	return a.orderCommand(&cobra.Command{
		Use:   "promote",
		Short: "Give a canary all new connections",
		Long: "Makes the canary current, and returns when it is: it accepts all new connections, and the generation that was current " +
			"keeps its own until they end. A rollback is possible for as long as that takes.",
	}, (*admin.Client).Promote, "generation %d is current\n")
}

func (a *app) rollbackCommand() *cobra.Command {
	return a.orderCommand(&cobra.Command{
		Use:   "rollback",
		Short: "Return to the generation before",
		Long: "Ends a canary, or, when there is none, makes the generation current again that was so before the present one. New connections " +
			"turn back at once; those of either generation are not touched. The generation that is given up drains, as " +
			"after a reload.\n\n" +
			"The generation before lives until its last connection has ended. For the time of the probation after an upgrade " +
			"(upgrade.probation in the configuration) another one like it is started if it has ended. After that there " +
			"is no way back but an upgrade.",
	}, (*admin.Client).Rollback, "generation %d serves again\n")
}

// orderCommand makes a command that orders an operation and waits for its end.
func (a *app) orderCommand(c *cobra.Command, order func(*admin.Client, context.Context) (uint64, error), done string) *cobra.Command {
	var (
		timeout time.Duration
		asJSON  bool
	)
	c.Args = cobra.NoArgs
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.talk(cmd.Context(), timeout, func(ctx context.Context, client *admin.Client) error {
			id, err := order(client, ctx)
			if err != nil {
				return err
			}
			o, err := follow(ctx, client, id)
			if err != nil {
				return err
			}
			if asJSON {
				if err := a.printJSON(o); err != nil {
					return err
				}
			}
			if err := o.Err(); err != nil {
				return err
			}
			if !asJSON {
				fmt.Fprintf(a.out, done, o.Generation)
				if o.Canary != nil && o.Canary.Verdict != "" {
					fmt.Fprintln(a.out, o.Canary.Verdict)
				}
			}
			return nil
		})
	}
	c.Flags().DurationVar(&timeout, "timeout", answerTimeout, "longest time to wait (0 = no limit); the order itself stands")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	a.instance.runtimeFlags(c)
	return c
}
