package cli

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/holdfast-quic/holdfast/internal/build"
	"github.com/holdfast-quic/holdfast/shm"
)

// versionInfo is what version --json prints.
type versionInfo struct {
	Version string `json:"version"`
	BuildID string `json:"build_id"`
	Go      string `json:"go"`
	ABI     string `json:"abi"` // of the shared segment
}

func (a *app) versionCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := versionInfo{
				Version: build.Version(), BuildID: build.ID(), Go: runtime.Version(),
				ABI: fmt.Sprintf("%d.%d", shm.ABIMajor, shm.ABIMinor),
			}
			if asJSON {
				return a.printJSON(v)
			}
			fmt.Fprintf(a.out, "holdfast %s (build %s, %s, segment ABI %s)\n", v.Version, v.BuildID, v.Go, v.ABI)
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
