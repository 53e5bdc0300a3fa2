package supervisor

import (
	"errors"
	"fmt"
)

var (
	// ErrUsage says that the caller asked for something that can't be meant.
	ErrUsage = errors.New("invalid request")
	// ErrConfig says that a configuration was refused; nothing has changed.
	ErrConfig = errors.New("invalid configuration")
	// ErrRunning says that another supervisor holds the instance lock.
	ErrRunning = errors.New("already running")
	// ErrStopping says that the supervisor is about to end.
	ErrStopping = errors.New("the supervisor is stopping")
	// ErrAddressInUse says that another program holds a listener's address.
	ErrAddressInUse = errors.New("address in use")
	// ErrNotFound says that what a request names is not there.
	ErrNotFound = errors.New("not found")
	// ErrState says that what was asked for makes sense, but not in the state
	// that things are in.
	ErrState = errors.New("not possible now")
	// ErrBusy says that too much is under way for one thing more.
	ErrBusy = errors.New("busy")
	// ErrLimit says that a limit of the host or the segment is in the way.
	ErrLimit = errors.New("limit reached")
	// ErrTimeout says that something did not happen in time.
	ErrTimeout = errors.New("timed out")
)

// Codes of an admin API error, for exit codes.
const (
	CodeInvalidConfig = "invalid_config"
	CodeFailed        = "failed"
	CodeBusy          = "busy"
	CodeTimeout       = "timeout"
	CodeUsage         = "usage"
)

// codeOf returns the code that fits err.
func codeOf(err error) string {
	switch {
	case errors.Is(err, ErrConfig):
		return CodeInvalidConfig
	case errors.Is(err, ErrUsage), errors.Is(err, ErrNotFound):
		return CodeUsage
	case errors.Is(err, ErrStopping), errors.Is(err, ErrBusy):
		return CodeBusy
	}
	// What ran into one of the supervisor's own limits has failed; a timeout
	// is what the client's own limit ended.
	return CodeFailed
}

// configError marks err as the fault of a configuration without adding words:
// the text of a configuration fault is complete as it is.
type configError struct{ err error }

func (e configError) Error() string   { return e.err.Error() }
func (e configError) Unwrap() []error { return []error{ErrConfig, e.err} }

// restartNeeded is the refusal of a change that no reload can make.
func restartNeeded(key string) error {
	return configError{fmt.Errorf("%s has changed: it takes effect by a restart only", key)}
}
