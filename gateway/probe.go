package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// probeServerName is what a probe asks for; no certificate is needed for it.
const probeServerName = "probe.holdfast.invalid"

// Probe proves that whoever is behind conn serves HTTP/3: a whole QUIC
// handshake and one request. addr is where the server has to seem to be, and
// listener its name, for the error. The certificate is not verified: what is
// asked is whether the process works, and the configuration said already
// whose certificate it has. It does not close conn.
func Probe(ctx context.Context, conn net.PacketConn, addr net.Addr, listener string) error {
	if err := probe(ctx, conn, addr); err != nil {
		return fmt.Errorf("%w: listener %q: %w", ErrProbe, listener, err)
	}
	return nil
}

// ProbeHandshake proves that whoever is behind conn answers a QUIC handshake,
// whatever it speaks: that it completes, or that the other side has an alert
// to give, such as that it knows none of the protocols that were offered. The
// rest is as with Probe.
func ProbeHandshake(ctx context.Context, conn net.PacketConn, addr net.Addr, listener string) error {
	tr := &quic.Transport{Conn: conn}
	defer tr.Close()
	c, err := tr.Dial(ctx, addr, &tls.Config{
		ServerName:         probeServerName,
		NextProtos:         []string{probeProtocol},
		InsecureSkipVerify: true,
	}, &quic.Config{DisablePathMTUDiscovery: true})
	if refusal, ok := errors.AsType[*quic.TransportError](err); ok && refusal.Remote && refusal.ErrorCode.IsCryptoError() {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: listener %q: handshake: %w", ErrProbe, listener, err)
	}
	_ = c.CloseWithError(0, "")
	return nil
}

// probeProtocol is the ALPN name that is offered to a worker which may speak
// anything.
const probeProtocol = "holdfast-probe"

func probe(ctx context.Context, pc net.PacketConn, addr net.Addr) error {
	tr := &quic.Transport{Conn: pc}
	defer tr.Close()
	conn, err := tr.Dial(ctx, addr, &tls.Config{
		ServerName:         probeServerName,
		NextProtos:         []string{ProtocolHTTP3},
		InsecureSkipVerify: true,
	}, &quic.Config{DisablePathMTUDiscovery: true})
	if err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	defer func() { _ = conn.CloseWithError(quic.ApplicationErrorCode(http3.ErrCodeNoError), "") }()

	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+probeServerName+ProbePath, nil)
	if err != nil {
		return err
	}
	client := &http3.Transport{DisableCompression: true}
	defer client.Close()
	resp, err := client.NewClientConn(conn).RoundTrip(req)
	if err != nil {
		return fmt.Errorf("request: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		return fmt.Errorf("request: answered with status %d, expected %d", resp.StatusCode, http.StatusNoContent)
	}
	return nil
}
