package gateway

import "errors"

var (
	// ErrOptions means that the options cannot be served; the text says why.
	ErrOptions = errors.New("gateway options are not usable")
	// ErrProbe means that a worker did not answer its readiness probe as it should.
	ErrProbe = errors.New("readiness probe failed")
)
