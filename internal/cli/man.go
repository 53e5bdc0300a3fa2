package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

//go:generate go run ../../cmd/holdfast gen-man ../../docs/man

func (a *app) manCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "gen-man DIRECTORY",
		Short:  "Write the manual pages",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			pages := manPages(cmd.Root())
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			for name, text := range pages {
				if err := os.WriteFile(filepath.Join(args[0], name), text, 0o644); err != nil {
					return err
				}
			}
			fmt.Fprintf(a.out, "%d manual pages in %s\n", len(pages), args[0])
			return nil
		},
	}
}

// exitStatus is in each page, since scripts rely on it.
const exitStatus = `0 done; 1 failed, with the reason on standard error; 2 wrong usage; 3 invalid configuration; ` +
	`4 no supervisor is running; 5 timed out.`

// manPages returns the manual pages of a command and all below it by file
// name.
func manPages(root *cobra.Command) map[string][]byte {
	pages := map[string][]byte{}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Hidden || c.Name() == "help" {
			return
		}
		pages[manName(c)+".8"] = manPage(c)
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(root)
	return pages
}

// manName is the command's path with hyphens, as in git-commit(1).
func manName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// manPage renders one page for man(7).
func manPage(c *cobra.Command) []byte {
	var p bytes.Buffer
	fmt.Fprintf(&p, ".TH %s 8 \"\" \"Holdfast\" \"Holdfast Manual\"\n", strings.ToUpper(roff(manName(c))))
	fmt.Fprintf(&p, ".SH NAME\n%s \\- %s\n", roff(manName(c)), roff(c.Short))
	fmt.Fprintf(&p, ".SH SYNOPSIS\n\\fB%s\\fR\n", roff(c.UseLine()))
	text := c.Long
	if text == "" {
		text = c.Short + "."
	}
	p.WriteString(".SH DESCRIPTION\n" + paragraphs(text))
	manCommands(&p, c)
	if c.Flags().HasAvailableFlags() {
		p.WriteString(".SH OPTIONS\n")
		c.Flags().VisitAll(func(f *pflag.Flag) { manFlag(&p, f) })
	}
	if c.Example != "" {
		fmt.Fprintf(&p, ".SH EXAMPLES\n.nf\n%s\n.fi\n", roff(c.Example))
	}
	p.WriteString(".SH EXIT STATUS\n" + paragraphs(exitStatus))
	manSeeAlso(&p, c)
	return p.Bytes()
}

// manCommands lists what is below a command.
func manCommands(p *bytes.Buffer, c *cobra.Command) {
	if !c.HasAvailableSubCommands() {
		return
	}
	p.WriteString(".SH COMMANDS\n")
	for _, sub := range c.Commands() {
		if !sub.Hidden && sub.Name() != "help" {
			fmt.Fprintf(p, ".TP\n\\fB%s\\fR(8)\n%s\n", roff(manName(sub)), roff(sub.Short))
		}
	}
}

func manFlag(p *bytes.Buffer, f *pflag.Flag) {
	if f.Hidden || f.Name == "help" {
		return
	}
	p.WriteString(".TP\n")
	if f.Shorthand != "" {
		fmt.Fprintf(p, "\\fB%s\\fR, ", roff("-"+f.Shorthand))
	}
	fmt.Fprintf(p, "\\fB%s\\fR", roff("--"+f.Name))
	value, usage := pflag.UnquoteUsage(f)
	if value != "" {
		fmt.Fprintf(p, " \\fI%s\\fR", roff(value))
	}
	fmt.Fprintf(p, "\n%s", roff(usage))
	if f.DefValue != "" && f.DefValue != "false" {
		fmt.Fprintf(p, " (default %s)", roff(f.DefValue))
	}
	p.WriteString("\n")
}

// manSeeAlso names the page above and the pages beside a command.
func manSeeAlso(p *bytes.Buffer, c *cobra.Command) {
	if !c.HasParent() {
		return
	}
	fmt.Fprintf(p, ".SH SEE ALSO\n\\fB%s\\fR(8)\n", roff(manName(c.Parent())))
}

// paragraphs renders text whose paragraphs are parted by empty lines.
func paragraphs(text string) string {
	return strings.ReplaceAll(roff(text), "\n\n", "\n.PP\n") + "\n"
}

// roff protects what has a meaning for troff.
func roff(s string) string {
	s = strings.ReplaceAll(s, `\`, `\e`)
	s = strings.ReplaceAll(s, "-", `\-`)
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
