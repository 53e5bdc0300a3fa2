package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-quic/holdfast/supervisor"
)

// app is what the commands share: the streams, and the flags that all of them
// have.
type app struct {
	in       io.Reader
	out, err io.Writer
	signals  <-chan os.Signal // caught for run, else nil
	resume   *supervisor.Resumption
	instance instance
}

// Main runs the command line without the program's name and returns the exit
// code.
func Main(args []string) int {
	a := &app{in: os.Stdin, out: os.Stdout, err: os.Stderr}
	if isRun(args) {
		// Before anything else: a reload that is asked for this early must
		// not end the process.
		a.signals = supervisor.CatchSignals()
		return a.mainOrBack(args)
	}
	nameProcess()
	return a.main(context.Background(), args)
}

// mainOrBack runs the supervisor. When this process was one before, of another
// program, whatever goes wrong at first leads back to that.
func (a *app) mainOrBack(args []string) (code int) {
	var err error
	if a.resume, err = supervisor.Resume(); err != nil {
		report(a.err, err)
		return exitFailed
	}
	nameProcess()
	defer func() {
		if fault := recover(); fault != nil {
			a.resume.Return(fmt.Errorf("panic: %v", fault))
			panic(fault)
		}
	}()
	code = a.main(context.Background(), args)
	if code != exitDone {
		a.resume.Return(fmt.Errorf("it ended with exit status %d", code))
	}
	return code
}

// isRun reports whether a command line is that of run, without the time that
// it takes to make the commands: flags may come first, each with its value.
func isRun(args []string) bool {
	for i := 0; i < len(args); i++ {
		if !strings.HasPrefix(args[i], "-") {
			return args[i] == "run"
		}
		if !strings.Contains(args[i], "=") {
			i++
		}
	}
	return false
}

func (a *app) main(ctx context.Context, args []string) int {
	root := a.root()
	root.SetArgs(args)
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	if _, ok := errors.AsType[*ran](err); !ok {
		// No command has run, so the words were wrong.
		err = &exitError{exitUsage, err}
		if unknown := unknownCommand(root, args); unknown != nil {
			err = unknown
		}
	}
	report(a.err, err)
	return exitCode(err)
}

// ran marks an error as one of a command, not of the command line.
type ran struct{ error }

func (r *ran) Unwrap() error { return r.error }

// root returns the whole tree of commands.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "holdfast",
		Short: "Keep QUIC connections alive over reloads, crashes and address changes",
		Long: "Holdfast is the process manager of a QUIC gateway host. It serves HTTP/3, HTTP/2 and HTTP/1.1, " +
			"and it keeps every connection alive while the configuration is reloaded, a worker crashes, and clients change address.\n\n" +
			"Begin with \"holdfast run\", which needs no configuration, or with \"holdfast demo\".",
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.AddCommand(
		a.runCommand(), a.workerCommand(), a.verifyCommand(), a.checkCommand(), a.reloadCommand(), a.upgradeCommand(), a.promoteCommand(), a.rollbackCommand(), a.statusCommand(), a.connsCommand(),
		a.drainCommand(), a.stopCommand(), a.demoCommand(), a.checkSegmentCommand(), a.versionCommand(),
		a.completionCommand(), a.manCommand(),
	)
	root.SetHelpCommand(helpCommand())
	root.InitDefaultHelpCmd() // now rather than later, so that it is wrapped too
	root.SetFlagErrorFunc(flagError)
	root.DisableSuggestions = true // in cobra's words; noCommand makes them
	wrap(root)
	return root
}

// wrap marks the errors of all commands below c, and puts what is wrong with
// their arguments into our words.
func wrap(c *cobra.Command) {
	if c.Args != nil {
		c.Args = arguments(c.Args)
	}
	if run := c.RunE; run != nil {
		c.RunE = func(cmd *cobra.Command, args []string) error {
			if err := run(cmd, args); err != nil {
				return &ran{err}
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		wrap(sub)
	}
}

// oneLine makes a reason fit one line.
func oneLine(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}
