package demo

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/holdfast-quic/holdfast/gateway"
)

// serverName is what the clients ask for; the certificate is self-signed.
const serverName = "localhost"

// errStalled ends a transfer.
var errStalled = fmt.Errorf("no data for %v", requestTimeout)

// Windows of a paced transfer. They are small so that it is the reading which
// paces the server, instead of one burst into a buffer.
const (
	streamWindow = 32 << 10
	connWindow   = 64 << 10
)

// Kind is what a client does.
type Kind string

// Kinds of clients.
const (
	KindSteady   Kind = "steady requests"
	KindTransfer Kind = "long transfer"
	KindNew      Kind = "new connection" // used once
)

// Move is how a client changes its address.
type Move string

// Moves.
const (
	MovePort Move = "new port" // under the connection, as a NAT does it
	MovePath Move = "new path" // probed and switched to
)

// lastMove is the latest change of a client's address.
type lastMove struct {
	how Move
	at  time.Time
}

// client is one HTTP/3 connection over sockets of its own. It never connects
// again.
type client struct {
	tally  *tally
	kind   Kind
	opened time.Time
	// For the report of a failure.
	generation atomic.Uint32
	moved      atomic.Pointer[lastMove]

	server *net.UDPAddr
	conn   *quic.Conn
	h3     *http3.ClientConn
	socket *socket // the one of the handshake

	path       *quic.Path        // switched to last; nil = the one of the handshake
	transports []*quic.Transport // one per path
	sockets    []net.PacketConn
}

// dial connects within the context's limit.
func dial(ctx context.Context, server *net.UDPAddr, t *tally, kind Kind) (*client, error) {
	s, err := openSocket()
	if err != nil {
		return nil, err
	}
	c := &client{tally: t, kind: kind, opened: time.Now(), server: server, socket: s}
	tr := c.transport(s)
	c.conn, err = tr.Dial(ctx, server, &tls.Config{
		ServerName:         serverName,
		NextProtos:         []string{http3.NextProtoH3},
		InsecureSkipVerify: true, // whose certificate it is was never in doubt: its own
	}, &quic.Config{
		HandshakeIdleTimeout:           requestTimeout,
		KeepAlivePeriod:                keepAlive,
		InitialStreamReceiveWindow:     streamWindow,
		MaxStreamReceiveWindow:         streamWindow,
		InitialConnectionReceiveWindow: connWindow,
		MaxConnectionReceiveWindow:     connWindow,
	})
	if err != nil {
		c.close()
		return nil, err
	}
	c.h3 = (&http3.Transport{DisableCompression: true}).NewClientConn(c.conn)
	return c, nil
}

// transport puts a quic-go transport over a socket that the client owns.
func (c *client) transport(pc net.PacketConn) *quic.Transport {
	tr := &quic.Transport{Conn: pc}
	c.transports = append(c.transports, tr)
	c.sockets = append(c.sockets, pc)
	return tr
}

func (c *client) close() {
	if c.conn != nil {
		_ = c.conn.CloseWithError(quic.ApplicationErrorCode(http3.ErrCodeNoError), "")
	}
	for i, tr := range c.transports {
		_ = tr.Close()
		_ = c.sockets[i].Close()
	}
}

// state is what is known of a client whose wait that began at start was in
// vain.
func (c *client) state(start time.Time) *ClientState {
	now := time.Now()
	s := &ClientState{
		Kind:       c.kind,
		Waited:     now.Sub(start).Seconds(),
		Age:        now.Sub(c.opened).Seconds(),
		Generation: c.generation.Load(),
	}
	if m := c.moved.Load(); m != nil {
		s.LastMove, s.SinceMove = m.how, now.Sub(m.at).Seconds()
	}
	return s
}

// lost returns why the connection has ended, or nil.
func (c *client) lost() error {
	if c.conn.Context().Err() == nil {
		return nil
	}
	return context.Cause(c.conn.Context())
}

func (c *client) get(ctx context.Context, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+serverName+path, nil)
	if err != nil {
		return nil, err
	}
	return c.h3.RoundTrip(req)
}

// whoami sends a request and notes which generation answered it, and how long
// that took, in vain or not.
func (c *client) whoami(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	start := time.Now()
	defer func() { c.tally.gap(time.Since(start)) }()
	resp, err := c.get(ctx, "/whoami")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var who struct {
		Generation uint32 `json:"generation"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&who); err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("answered with status %d", resp.StatusCode)
	}
	c.generation.Store(who.Generation)
	c.tally.saw(who.Generation)
	return nil
}

// requestSteadily sends a request each period until stop is closed.
func (c *client) requestSteadily(ctx context.Context, stop <-chan struct{}) {
	tick := time.NewTicker(requestPeriod)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		c.tally.requests.Add(1)
		start := time.Now()
		if err := c.whoami(ctx); err != nil {
			c.tally.requestsFailed.Add(1)
			c.tally.blameClient(c, "request", start, err)
			if c.lost() != nil {
				return
			}
		}
	}
}

// transfer reads size bytes at the demonstration's rate, and what is left when
// stop is closed as fast as it comes. Every byte is compared. It is broken as
// well when no byte comes for as long as a request may take.
func (c *client) transfer(ctx context.Context, size int64, stop <-chan struct{}) {
	start := time.Now()
	err := c.whoami(ctx) // for the report of a failure
	if err == nil {
		start, err = c.read(ctx, size, stop)
	}
	if err != nil {
		c.tally.transfersFailed.Add(1)
		c.tally.blameClient(c, "transfer", start, err)
	}
}

// read does the transfer and returns when its last wait began.
func (c *client) read(ctx context.Context, size int64, stop <-chan struct{}) (start time.Time, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := time.AfterFunc(requestTimeout, func() { cancel(errStalled) })
	defer stall.Stop()
	start = time.Now()
	defer func() {
		c.tally.gap(time.Since(start))
		if errors.Is(context.Cause(ctx), errStalled) {
			err = errStalled
		}
	}()
	resp, err := c.get(ctx, "/speedtest?bytes="+strconv.FormatInt(size, 10))
	if err != nil {
		return start, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return start, fmt.Errorf("answered with status %d", resp.StatusCode)
	}
	tick := time.NewTicker(transferPeriod)
	defer tick.Stop()
	buf := make([]byte, transferRate*transferPeriod/time.Second)
	var offset int64
	for {
		start = time.Now()
		stall.Reset(requestTimeout)
		n, err := io.ReadFull(resp.Body, buf)
		stall.Stop()
		c.tally.gap(time.Since(start))
		c.tally.transferBytes.Add(uint64(n))
		for i := range n {
			if buf[i] != gateway.SpeedtestByte(offset+int64(i)) {
				return start, fmt.Errorf("byte %d is not what was sent", offset+int64(i))
			}
		}
		offset += int64(n)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			if offset != size {
				return start, fmt.Errorf("%d of %d bytes came", offset, size)
			}
			return start, nil
		case err != nil:
			return start, err
		}
		select {
		case <-stop:
		case <-tick.C:
		}
	}
}

// swapPort changes the client's port under the connection.
func (c *client) swapPort(context.Context) error {
	if err := c.socket.rebind(); err != nil {
		return err
	}
	c.moved.Store(&lastMove{how: MovePort, at: time.Now()})
	c.tally.portsSwapped.Add(1)
	return nil
}

// switchPath moves the connection to a new path on purpose. The path that is
// left, or can't be proven, is closed: quic-go v0.65 may send one more probe of
// a path that it uses already, and takes another of the server's connection
// IDs for it. Only closing the path gives that back, and without one to spare
// no further path can be probed.
func (c *client) switchPath(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	pc, err := listenLoopback()
	if err != nil {
		return err
	}
	path, err := c.conn.AddPath(c.transport(pc))
	if err != nil {
		return err
	}
	if err := path.Probe(ctx); err != nil {
		return errors.Join(fmt.Errorf("probe new path: %w", err), path.Close())
	}
	if err := path.Switch(); err != nil {
		return fmt.Errorf("switch to new path: %w", err)
	}
	if c.path != nil {
		if err := c.path.Close(); err != nil {
			return fmt.Errorf("close former path: %w", err)
		}
	}
	c.path = path
	c.moved.Store(&lastMove{how: MovePath, at: time.Now()})
	c.tally.pathsSwitched.Add(1)
	return nil
}
