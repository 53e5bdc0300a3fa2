package cli

import (
	"github.com/spf13/cobra"

	"github.com/holdfast-quic/holdfast/internal/build"
	"github.com/holdfast-quic/holdfast/supervisor"
)

// verifyCommand is how a supervisor asks a new program. Its name, its flags,
// its descriptors and its exit codes are what versions agree on.
func (a *app) verifyCommand() *cobra.Command {
	var path string
	c := &cobra.Command{
		Use:    "verify",
		Short:  "Say whether this program can take over; started by the supervisor only",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := a.instance.resolve(); err != nil {
				return err
			}
			source := &source{path: path, stateDir: a.instance.stateDir}
			return supervisor.Verify(build.Version(), build.ID(), source.spec)
		},
	}
	c.Flags().StringVarP(&path, "config", "c", "", "configuration file (default: the built-in example)")
	a.instance.runtimeFlags(c)
	a.instance.stateFlag(c)
	return c
}

// verifyArgs are the arguments for a new program that is to run the instance
// which this one runs.
func (a *app) verifyArgs(path string) []string {
	return []string{
		"verify", "--config=" + path, "--name=" + a.instance.name,
		"--runtime-dir=" + a.instance.runtimeDir, "--state-dir=" + a.instance.stateDir,
	}
}
