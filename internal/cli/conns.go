package cli

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-quic/holdfast/internal/admin"
)

// connsFilter says which connections are wanted.
type connsFilter struct {
	generation uint32 // 0 = any
	slot       int    // negative = any
}

func (a *app) connsCommand() *cobra.Command {
	var (
		timeout time.Duration
		asJSON  bool
		filter  connsFilter
	)
	c := &cobra.Command{
		Use:   "conns",
		Short: "List connections, or close one",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.talk(cmd.Context(), timeout, func(ctx context.Context, c *admin.Client) error {
				return a.listConns(ctx, c, filter, asJSON)
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().Uint32Var(&filter.generation, "generation", 0, "only those of this generation (0 = all)")
	c.Flags().IntVar(&filter.slot, "slot", -1, "only those of this worker slot (-1 = all)")
	c.Flags().DurationVar(&timeout, "timeout", answerTimeout, "longest time to wait (0 = no limit)")
	a.instance.runtimeFlags(c)
	c.AddCommand(a.closeConnCommand())
	return c
}

func (a *app) listConns(ctx context.Context, c *admin.Client, filter connsFilter, asJSON bool) error {
	conns, silent, err := c.Conns(ctx, filter.generation, filter.slot)
	if err != nil {
		return err
	}
	if err := a.printConns(conns, asJSON); err != nil {
		return err
	}
	if len(silent) > 0 {
		return fmt.Errorf("the list is not complete: no answer from worker %s", strings.Join(silent, ", "))
	}
	return nil
}

func (a *app) printConns(conns []admin.Conn, asJSON bool) error {
	if asJSON {
		return a.printJSON(conns)
	}
	now := time.Now()
	t := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ID\tGENERATION\tSLOT\tKIND\tPROTOCOL\tLISTENER\tREMOTE\tLOCAL\tAGE")
	for i := range conns {
		k := &conns[i]
		fmt.Fprintf(t, "%s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n", k.ID, k.Generation, k.Slot, k.Kind, k.Protocol, k.Listener,
			k.Remote, k.Local, age(now.Sub(k.Since)))
	}
	return t.Flush()
}

func (a *app) closeConnCommand() *cobra.Command {
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "close ID",
		Short: "Close one connection in order",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.talk(cmd.Context(), timeout, func(ctx context.Context, c *admin.Client) error {
				if err := c.CloseConn(ctx, args[0]); err != nil {
					return err
				}
				fmt.Fprintf(a.out, "connection %s is closed\n", args[0])
				return nil
			})
		},
	}
	c.Flags().DurationVar(&timeout, "timeout", answerTimeout, "longest time to wait (0 = no limit)")
	a.instance.runtimeFlags(c)
	return c
}

func (a *app) drainCommand() *cobra.Command {
	var (
		timeout    time.Duration
		generation uint32
		cancel     bool
	)
	c := &cobra.Command{
		Use:   "drain --generation N [--cancel]",
		Short: "Ask the clients of an old generation to leave, or take that back",
		Long: "Tells a draining generation to say goodbye to its clients (GOAWAY, or \"Connection: close\"), spread over the configured " +
			"window. With --cancel the goodbyes that have not been said are not said; what was said stays said.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if generation == 0 {
				return usageError("drain: which generation? Name it with --generation")
			}
			return a.talk(cmd.Context(), timeout, func(ctx context.Context, c *admin.Client) error {
				if err := c.Drain(ctx, generation, cancel); err != nil {
					return err
				}
				what := "drains"
				if cancel {
					what = "holds its connections again"
				}
				fmt.Fprintf(a.out, "generation %d %s\n", generation, what)
				return nil
			})
		},
	}
	c.Flags().Uint32Var(&generation, "generation", 0, "number of the generation")
	c.Flags().BoolVar(&cancel, "cancel", false, "take the order back")
	c.Flags().DurationVar(&timeout, "timeout", answerTimeout, "longest time to wait (0 = no limit)")
	a.instance.runtimeFlags(c)
	return c
}
