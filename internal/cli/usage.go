package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// What is wrong with a command line is said here, in one line and in our
// words: those of cobra and of the parsers below it name Go functions, and
// take several lines.

// valueKinds says what a flag expects, by the type of its value.
var valueKinds = map[string]string{
	"uint8":    "a whole number from 0 to 255",
	"uint16":   "a whole number from 0 to 65535",
	"uint32":   "a whole number from 0 to 4294967295",
	"int":      "a whole number",
	"float64":  "a number",
	"bool":     "true or false",
	"duration": `a duration such as "30s" or "1h30m"`,
}

// flagError is the FlagErrorFunc of all commands.
func flagError(c *cobra.Command, err error) error {
	var (
		value   *pflag.InvalidValueError
		needs   *pflag.ValueRequiredError
		unknown *pflag.NotExistError
	)
	switch {
	case errors.As(err, &value):
		expected, ok := valueKinds[value.GetFlag().Value.Type()]
		if !ok { // a type of ours, whose error is in our words
			expected = value.Unwrap().Error()
		}
		return usageError("%s--%s: found %q, expected %s", lead(c), value.GetFlag().Name, value.GetValue(), expected)
	case errors.As(err, &needs):
		return usageError("%s--%s needs a value", lead(c), needs.GetFlag().Name)
	case errors.As(err, &unknown):
		name := "--" + unknown.GetSpecifiedName()
		if unknown.GetSpecifiedShortnames() != "" {
			name = name[1:]
		}
		return usageError("%sthere is no flag %s; %q lists those that there are", lead(c), name, c.CommandPath()+" --help")
	}
	return usageError("%s%w", lead(c), err)
}

// lead names a command at the start of a reason; the root has no name there.
func lead(c *cobra.Command) string {
	if !c.HasParent() {
		return ""
	}
	return strings.TrimPrefix(c.CommandPath(), c.Root().Name()+" ") + ": "
}

// arguments is the Args of a command whose own Args are rule.
func arguments(rule cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		switch {
		case rule(c, args) == nil:
			return nil
		case rule(c, nil) != nil: // it wants some
			found := "nothing"
			if len(args) > 0 {
				found = fmt.Sprintf("%q", strings.Join(args, " "))
			}
			return usageError("%sfound %s, expected %q", lead(c), found, c.Use)
		case c.HasAvailableSubCommands():
			return noCommand(c, args[0])
		}
		return usageError("%sfound %q, but this command takes no arguments", lead(c), args[0])
	}
}

// noCommand says that c has no command of that name, and which one may be
// meant.
func noCommand(c *cobra.Command, name string) error {
	const slips = 2 // letters that a mistyped name may differ in
	c.SuggestionsMinimumDistance = slips
	text := fmt.Sprintf("%sthere is no command %q", lead(c), name)
	if near := c.SuggestionsFor(name); len(near) > 0 {
		return usageError("%s; did you mean %q?", text, near[0])
	}
	return usageError("%s; %q lists those that there are", text, c.CommandPath()+" --help")
}

// unknownCommand puts the error of a command line that names no command into
// our words. cobra has looked for the word among flags and their values, and
// tells it only in its text.
func unknownCommand(root *cobra.Command, args []string) error {
	c, _, err := root.Find(args)
	if err == nil {
		return nil
	}
	var name string
	if n, scanErr := fmt.Sscanf(err.Error(), "unknown command %q", &name); n != 1 || scanErr != nil {
		return usageError("%s", oneLine(err.Error()))
	}
	return noCommand(c, name)
}

// helpCommand replaces cobra's, which takes a name that there is not for
// success.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Explain a command",
		RunE: func(c *cobra.Command, args []string) error {
			about, _, err := c.Root().Find(args)
			if err != nil {
				return unknownCommand(c.Root(), args)
			}
			about.InitDefaultHelpFlag() // so that it is in the list
			return about.Help()
		},
	}
}
