package kit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/quic-go/quic-go"
)

// Causes of a connection's end, as Cause names them.
const (
	CauseReset     = "stateless reset"
	CauseIdle      = "idle timeout"
	CauseHandshake = "handshake timeout"
	CauseTimeout   = "no answer in time"
	CauseVersion   = "version negotiation"
	CauseTCPReset  = "connection reset"
)

// Cause names what ended a connection or a request, in words that can be
// counted.
func Cause(err error) string {
	if err == nil {
		return "none"
	}
	if _, ok := errors.AsType[*quic.StatelessResetError](err); ok {
		return CauseReset
	}
	if _, ok := errors.AsType[*quic.HandshakeTimeoutError](err); ok {
		return CauseHandshake
	}
	if _, ok := errors.AsType[*quic.IdleTimeoutError](err); ok {
		return CauseIdle
	}
	if _, ok := errors.AsType[*quic.VersionNegotiationError](err); ok {
		return CauseVersion
	}
	if e, ok := errors.AsType[*quic.ApplicationError](err); ok {
		return fmt.Sprintf("application close 0x%x by %s", uint64(e.ErrorCode), end(e.Remote))
	}
	if e, ok := errors.AsType[*quic.TransportError](err); ok {
		return fmt.Sprintf("transport close 0x%x by %s", uint64(e.ErrorCode), end(e.Remote))
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return CauseTimeout
	case errors.Is(err, syscall.ECONNRESET):
		return CauseTCPReset
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, net.ErrClosed):
		return "closed here"
	}
	return err.Error()
}

func end(remote bool) string {
	if remote {
		return "server"
	}
	return "client"
}
