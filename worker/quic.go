package worker

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"net"

	"github.com/quic-go/quic-go"
)

// QUIC returns the transport of a listener, ready to listen on: connection
// IDs, keys and steering are set. Calls with one name return one Transport.
//
// The program must not replace the Transport's Conn, ConnectionIDGenerator,
// keys or ConnContext; the context of each connection leads to its entry in
// the connection list, see ConnFromContext. The worker closes the Transport.
// Errors: ErrNoListener, and those of the system.
func (w *Worker) QUIC(name string) (*quic.Transport, error) {
	l, ok := w.listeners[name]
	if !ok || !l.info.QUIC {
		return nil, fmt.Errorf("listener %q for QUIC: %w", name, ErrNoListener)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.transport != nil {
		return l.transport, nil
	}
	c, err := l.openConn(w.node, w.bell)
	if err != nil {
		return nil, err
	}
	token := quic.TokenGeneratorKey(w.tokenKey)
	l.transport = newTransport(c, w.cids, w.registry, listenerResetKey(w.resetKey, name), &token)
	return l.transport, nil
}

func newTransport(c *conn, cids *cidGenerator, r *registry, reset *quic.StatelessResetKey, token *quic.TokenGeneratorKey) *quic.Transport {
	name, local := c.listener.Name, c.LocalAddr()
	return &quic.Transport{
		Conn:                  c,
		ConnectionIDGenerator: cids,
		StatelessResetKey:     reset,
		TokenGeneratorKey:     token,
		ConnContext: func(ctx context.Context, info *quic.ClientInfo) (context.Context, error) {
			return r.quicContext(ctx, name, info.RemoteAddr, local), nil
		},
	}
}

// listenerResetKey derives the reset key of a listener. With one key for all,
// a packet of a live connection sent to another listener's port would be
// answered there with the very token that ends it (RFC 9000, section 21.11);
// its transport cannot know that the connection lives next door.
func listenerResetKey(key [32]byte, listener string) *quic.StatelessResetKey {
	mac := hmac.New(sha256.New, key[:])
	mac.Write([]byte("holdfast stateless reset " + listener))
	out := quic.StatelessResetKey(mac.Sum(nil))
	return &out
}

// TCP returns the net.Listener of a listener. It accepts only while this
// worker is to take new connections; otherwise Accept waits. Its connections
// are *net.TCPConn behind a thin wrapper and stand in the connection list,
// see ConnFromNetConn. Calls with one name return one Listener.
func (w *Worker) TCP(name string) (net.Listener, error) {
	l, ok := w.listeners[name]
	if !ok || !l.info.TCP {
		return nil, fmt.Errorf("listener %q for TCP: %w", name, ErrNoListener)
	}
	return l.openTCP(w.registry)
}
