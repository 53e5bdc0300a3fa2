package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-quic/holdfast/internal/admin"
)

const (
	// upgradeTimeout is more than an upgrade takes that the supervisor has not
	// given up, without its soak.
	upgradeTimeout = 5 * time.Minute
	// operationPoll is how long one request waits for an operation.
	operationPoll = 20 * time.Second
	// absence is how long the supervisor may be unreachable while it becomes
	// another program; its socket stays, so that this takes a moment.
	absence     = 10 * time.Second
	absencePoll = 50 * time.Millisecond
)

func (a *app) upgradeCommand() *cobra.Command {
	var (
		binary, canary string
		u              admin.Upgrade
		timeout        time.Duration
		asJSON         bool
	)
	c := &cobra.Command{
		Use:   "upgrade [--binary PATH]",
		Short: "Replace the program, connections stay",
		Long: "Upgrades the instance to the program that lies on disk now, where it was started from, or to another one, and returns " +
			"when that serves. The new program first verifies the configuration and what it would take over. Then new workers " +
			"from it start, are proven and accept new connections, while the old ones keep theirs until they end; the supervisor itself " +
			"becomes the new program in the same process. When anything of that fails, what serves goes on as it was, and the reason " +
			"is printed.\n\n" +
			"A worker of the new program that crashes soon after the handover brings the old program back (upgrade.probation in the " +
			"configuration).",
		Example: "  holdfast upgrade\n  holdfast upgrade --binary /opt/holdfast-0.3/holdfast\n" +
			"  holdfast upgrade --canary 5% --soak 10m --auto",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if binary != "" {
				path, err := filepath.Abs(binary)
				if err != nil {
					return err
				}
				u.Binary = path
			}
			if cmd.Flags().Changed("canary") {
				share, err := percent(canary)
				if err != nil {
					return err
				}
				u.Canary = share
			} else if u.Soak != 0 || u.Auto {
				return usageError("upgrade: --soak and --auto are about a canary: add --canary PCT")
			}
			if u.Soak < 0 {
				return usageError("upgrade: --soak: found %s, expected no negative time", u.Soak)
			}
			if !cmd.Flags().Changed("timeout") && u.Auto {
				timeout += u.Soak
			}
			return a.talk(cmd.Context(), timeout, func(ctx context.Context, c *admin.Client) error {
				return a.upgrade(ctx, c, u, asJSON)
			})
		},
	}
	c.Flags().StringVar(&binary, "binary", "", "program to upgrade to (default: what lies where the instance was started from)")
	c.Flags().StringVar(&canary, "canary", "", "give the new generation this percentage of new connections at first, as `PCT`")
	c.Flags().DurationVar(&u.Soak, "soak", 0, "how long the canary lasts at least")
	c.Flags().BoolVar(&u.Auto, "auto", false, "promote the canary after the soak, or roll it back when it does worse")
	c.Flags().DurationVar(&timeout, "timeout", upgradeTimeout, "longest time to wait (0 = no limit); the upgrade itself goes on")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	a.instance.runtimeFlags(c)
	return c
}

// percent reads a share of connections, with or without its sign.
func percent(text string) (float64, error) {
	n, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(text), "%"), 64)
	if err != nil || !(n > 0 && n < 100) {
		return 0, usageError("--canary: found %q, expected a percentage above 0 and below 100", text)
	}
	return n, nil
}

func (a *app) upgrade(ctx context.Context, c *admin.Client, u admin.Upgrade, asJSON bool) error {
	id, err := c.Upgrade(ctx, u)
	if err != nil {
		return err
	}
	end := a.progress(ctx, c, func(s *admin.Status) string { return underWay(s, id) })
	o, err := follow(ctx, c, id)
	end()
	if err != nil {
		return err
	}
	if asJSON {
		if err := a.printJSON(o); err != nil {
			return err
		}
	}
	if o.Warning != "" {
		fmt.Fprintln(a.err, "holdfast: warning:", o.Warning)
	}
	if err := o.Err(); err != nil {
		return err
	}
	if !asJSON {
		fmt.Fprintf(a.out, "generation %d is %s%s\n", o.Generation, servingAs(u), ofVersion(o))
	}
	return nil
}

func servingAs(u admin.Upgrade) string {
	if u.Canary > 0 && !u.Auto {
		return fmt.Sprintf("a canary with %v %% of new connections", u.Canary)
	}
	return "current"
}

func ofVersion(o *admin.Operation) string {
	if o.Version == "" {
		return ""
	}
	return fmt.Sprintf(" (version %s, build %s)", o.Version, o.BuildID)
}

// follow returns an operation once it has ended. The supervisor may become
// another program meanwhile, or be killed and started again.
func follow(ctx context.Context, c *admin.Client, id uint64) (*admin.Operation, error) {
	var gone time.Time
	for {
		o, err := c.Operation(ctx, id, operationPoll)
		switch _, answered := errors.AsType[*admin.Error](err); {
		case err == nil && o.Ended():
			return o, nil
		case err == nil:
			gone = time.Time{}
			continue
		case answered && !busy(err) || ctx.Err() != nil:
			return nil, err
		}
		if gone.IsZero() {
			gone = time.Now()
		}
		if time.Since(gone) > absence {
			return nil, err
		}
		if err := sleep(ctx, absencePoll); err != nil {
			return nil, err
		}
	}
}

// busy reports whether the supervisor has answered that it is about to end.
func busy(err error) bool {
	e, ok := errors.AsType[*admin.Error](err)
	return ok && e.Code == admin.CodeBusy
}

// underWay describes an operation.
func underWay(s *admin.Status, id uint64) string {
	for i := range s.Operations {
		o := &s.Operations[i]
		switch {
		case o.ID != id:
		case o.State == "waiting":
			return "waiting for what is under way: " + starting(s)
		case o.Stage == "verifying":
			return "the new program verifies"
		case o.Stage == "room":
			return "waiting for a draining generation to end"
		case o.Stage == "canary":
			return fmt.Sprintf("generation %d is a canary", o.Generation)
		case o.Stage == "exec":
			return "the supervisor becomes the new program"
		default:
			return starting(s)
		}
	}
	return starting(s)
}
