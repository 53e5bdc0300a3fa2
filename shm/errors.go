package shm

import "errors"

// Errors of attaching and opening. They are wrapped with what was found.
var (
	// ErrNotSegment says that the bytes are not a whole, sealed segment.
	ErrNotSegment = errors.New("not a holdfast segment")
	// ErrABIVersion says that another major version of the layout is in use.
	ErrABIVersion = errors.New("segment has another ABI version")
	// ErrGeometry says that sizes are out of bounds or do not fit the segment.
	ErrGeometry = errors.New("segment geometry is invalid")
)

// Errors of the table. They are returned as they are, without wrapping and so
// without allocating.
var (
	// ErrTableFull says that both buckets hold only established connections.
	ErrTableFull = errors.New("connection-ID table is full")
	// ErrHandshakesFull says that unfinished handshakes fill their share and
	// none of them can be replaced in the two buckets.
	ErrHandshakesFull = errors.New("handshake share of the connection-ID table is full")
	// ErrOwned says that another live owner holds the connection ID.
	ErrOwned = errors.New("connection ID belongs to another owner")
	// ErrOwnerDead says that the directory does not list the owner as alive.
	ErrOwnerDead = errors.New("owner is not alive")
	// ErrContended says that an insert lost its entry again and again, which
	// takes a damaged segment or processes that are stopped at every step.
	ErrContended = errors.New("connection-ID table entry is contended")
)
