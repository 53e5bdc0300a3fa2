package cli

import (
	"errors"
	"fmt"
	"io"

	"github.com/holdfast-quic/holdfast/config"
	"github.com/holdfast-quic/holdfast/supervisor"
)

// Exit codes.
const (
	exitDone          = 0
	exitFailed        = 1
	exitUsage         = 2
	exitConfig        = 3
	exitNoSupervisor  = 4
	exitTimeout       = 5
	exitSilentFailure = -1 // failed, and the output has said why
)

// exitError carries the exit code of a command that failed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func usageError(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// errSilent ends a command with code 1 after its output has said why.
var errSilent = &exitError{exitSilentFailure, errors.New("failed")}

// exitCode returns the code that err stands for. A limit that was not the
// command's own, such as that of a worker to be ready, is no timeout: what ran
// into it has failed.
func exitCode(err error) int {
	var faults config.Errors
	e, ok := errors.AsType[*exitError](err)
	switch {
	case err == nil:
		return exitDone
	case ok && e.code == exitSilentFailure:
		return exitFailed
	case ok:
		return e.code
	case errors.As(err, &faults), errors.Is(err, supervisor.ErrConfig):
		return exitConfig
	}
	return exitFailed
}

// report prints the reason of a failure.
func report(w io.Writer, err error) {
	if errors.Is(err, errSilent) {
		return
	}
	var faults config.Errors
	if errors.As(err, &faults) {
		for _, f := range faults {
			fmt.Fprintln(w, f)
		}
		return
	}
	fmt.Fprintf(w, "holdfast: %s\n", oneLine(err.Error()))
}
