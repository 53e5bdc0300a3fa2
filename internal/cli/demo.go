package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/holdfast-quic/holdfast/internal/demo"
)

func (a *app) demoCommand() *cobra.Command {
	var (
		o      demo.Options
		asJSON bool
	)
	c := &cobra.Command{
		Use:   "demo",
		Short: "Show on this machine that nothing is lost",
		Long: "Starts an instance on a free port of the loopback address, holds HTTP/3 connections to it (half with steady requests, half " +
			"with long transfers), reloads it several times, and has a third of the clients change their address. It ends with a " +
			"verdict, with exit code 1 if anything was lost, and leaves nothing behind.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Connections < 1 || o.Reloads < 1 {
				return usageError("demo: --connections and --reloads have to be at least 1")
			}
			return a.demo(cmd.Context(), o, asJSON)
		},
	}
	c.Flags().IntVar(&o.Connections, "connections", 200, "connections to hold")
	c.Flags().IntVar(&o.Reloads, "reloads", 5, "reloads to do")
	c.Flags().BoolVar(&asJSON, "json", false, "print the verdict as JSON, and nothing else")
	return c
}

func (a *app) demo(ctx context.Context, o demo.Options, asJSON bool) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := quiet(); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	o.Command = []string{self}
	if !asJSON {
		o.Progress, o.Overwrite = a.err, isTerminal(a.err)
	}
	r, err := demo.Run(ctx, o)
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted")
	}
	if err != nil {
		return err
	}
	if asJSON {
		err = a.printJSON(r)
	} else {
		err = r.Print(a.out)
	}
	if err == nil && !r.OK {
		return errSilent
	}
	return err
}
