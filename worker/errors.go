package worker

import "errors"

var (
	// ErrNoListener says that the configuration has no listener of that name,
	// or none for that transport.
	ErrNoListener = errors.New("no such listener")
	// ErrRefused says that the supervisor does not want this process.
	ErrRefused = errors.New("refused by the supervisor")
	// ErrProtocol says that the supervisor sent something that this worker
	// cannot act on.
	ErrProtocol = errors.New("unexpected message from the supervisor")
	// ErrReturned says that a program ended while it was to serve.
	ErrReturned = errors.New("the program returned while it was to serve")
	// ErrNoCloser says that a connection cannot be ended from outside, since
	// the program has not said how.
	ErrNoCloser = errors.New("the program has set no closer for this connection")
	// ErrNoConn says that there is no such connection.
	ErrNoConn = errors.New("no such connection")
)
