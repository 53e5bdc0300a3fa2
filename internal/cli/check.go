package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-quic/holdfast/config"
)

func (a *app) checkCommand() *cobra.Command {
	var path string
	c := &cobra.Command{
		Use:   "check --config FILE",
		Short: "Validate a configuration",
		Long: "Reads a configuration and reports every fault with file, line and column, what was found and what was expected. " +
			"It binds, creates and changes nothing. The exit code is 3 when there is a fault. Certificates that have expired, or " +
			"are about to, are warned about and are no fault.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if path == "" {
				return usageError("check: which file? Name it with --config")
			}
			conf, err := config.Load(path)
			if err != nil {
				return err
			}
			for _, w := range conf.Warnings(time.Now()) {
				fmt.Fprintf(a.err, "holdfast: warning: %s\n", w)
			}
			fmt.Fprintf(a.out, "%s: valid (%s, %s)\n", path, count(len(conf.Listeners), "listener"), count(len(conf.Routes), "route"))
			return nil
		},
	}
	c.Flags().StringVarP(&path, "config", "c", "", "configuration file")
	return c
}
