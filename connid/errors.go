package connid

import "errors"

var (
	// ErrTooLong is returned for a connection ID of more than [MaxLen] octets.
	ErrTooLong = errors.New("connid: a connection ID has at most 20 octets")
	// ErrConfig is returned for a [Config] that the draft does not allow. The
	// error that wraps it says which field is at fault.
	ErrConfig = errors.New("connid: invalid QUIC-LB configuration")
	// ErrNonce is returned when a nonce does not have the configured length.
	ErrNonce = errors.New("connid: nonce does not have the configured length")
	// ErrRoute is returned for a [Route] that names no process.
	ErrRoute = errors.New("connid: route has no incarnation")
	// ErrExhausted is returned by [Generator.Generate] when all nonces that it
	// was given are used.
	ErrExhausted = errors.New("connid: no nonces left")
)
