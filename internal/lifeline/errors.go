package lifeline

import "errors"

var (
	// ErrMalformed says that the other end sent something that is not a
	// message of this protocol.
	ErrMalformed = errors.New("malformed message")
	// ErrTooLarge says that a message does not fit the socket; nothing was
	// sent.
	ErrTooLarge = errors.New("message too large")
	// ErrNoLifeline says that the process was not started by a supervisor.
	ErrNoLifeline = errors.New("not started by a holdfast supervisor")
	// ErrVersion says that the two ends share no protocol version.
	ErrVersion = errors.New("no common protocol version")
)
