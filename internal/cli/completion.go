package cli

import (
	"github.com/spf13/cobra"
)

func (a *app) completionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "completion SHELL",
		Short: "Print a completion script for bash, zsh or fish",
		Long:  "Prints a script that teaches the shell to complete the commands and flags of holdfast.",
		Example: "  holdfast completion bash > /etc/bash_completion.d/holdfast\n" +
			"  holdfast completion zsh > \"${fpath[1]}/_holdfast\"\n" +
			"  holdfast completion fish > ~/.config/fish/completions/holdfast.fish",
		Args:      cobra.ExactArgs(1),
		ValidArgs: []string{"bash", "zsh", "fish"},
		RunE: func(c *cobra.Command, args []string) error {
			switch args[0] {
			case "bash":
				return c.Root().GenBashCompletionV2(a.out, true)
			case "zsh":
				return c.Root().GenZshCompletion(a.out)
			case "fish":
				return c.Root().GenFishCompletion(a.out, true)
			}
			return usageError("completion: found %q, expected bash, zsh or fish", args[0])
		},
	}
}
