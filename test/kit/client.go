package kit

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// ClientOptions say how a client connects. The zero value of each field but
// Server is a sensible default.
type ClientOptions struct {
	Server       string                 // host:port of the server or of a relay
	LocalIP      string                 // address to send from; "" is the loopback address of the server's family
	Host         string                 // TLS server name; "" is localhost
	Rebindable   bool                   // needed by Rebind and Migrate
	Sessions     tls.ClientSessionCache // shared by clients that resume each other's sessions
	Tokens       quic.TokenStore        // keeps address tokens (NEW_TOKEN)
	Early        bool                   // send the first request as 0-RTT when a session is cached
	IdleTimeout  time.Duration          // default 30 s
	KeepAlive    time.Duration          // 0: no keep-alive packets, or MovingKeepAlive of a Rebindable client
	StreamWindow uint64                 // flow control window, fixed; 0: quic-go's own
	Curves       []tls.CurveID          // nil: Go's own, whose post-quantum share needs two Initial packets
	PacketConn   net.PacketConn         // use this instead of a socket of its own; the client closes it
}

// MovingKeepAlive is how long a client whose address changes waits in silence.
// A client whose request has been acknowledged has nothing to send until the
// answer comes. If its port changes then, the answer goes to the old one again
// and again, and only a packet from the new one can tell the server better. So
// RFC 9114, section 5.1, has clients with open requests keep the connection
// alive.
const MovingKeepAlive = time.Second

// DialTimeout bounds a handshake when the caller's context does not.
const DialTimeout = 10 * time.Second

func (o ClientOptions) tls() *tls.Config {
	name := o.Host
	if name == "" {
		name = "localhost"
	}
	return &tls.Config{
		ServerName:         name,
		InsecureSkipVerify: true, // servers under test sign their own certificates
		NextProtos:         []string{http3.NextProtoH3},
		ClientSessionCache: o.Sessions,
		CurvePreferences:   o.Curves,
	}
}

func (o ClientOptions) quic() *quic.Config {
	c := &quic.Config{
		MaxIdleTimeout:       o.IdleTimeout,
		KeepAlivePeriod:      o.KeepAlive,
		HandshakeIdleTimeout: DialTimeout,
		TokenStore:           o.Tokens,
	}
	if o.Rebindable && o.KeepAlive == 0 {
		c.KeepAlivePeriod = MovingKeepAlive
	}
	if o.StreamWindow > 0 {
		c.InitialStreamReceiveWindow, c.MaxStreamReceiveWindow = o.StreamWindow, o.StreamWindow
		c.InitialConnectionReceiveWindow, c.MaxConnectionReceiveWindow = o.StreamWindow, o.StreamWindow
	}
	return c
}

// Client is one QUIC connection with HTTP/3. It never reconnects.
type Client struct {
	options ClientOptions
	remote  *net.UDPAddr
	conn    *quic.Conn
	h3      *http3.ClientConn

	mu      sync.Mutex
	active  int // which of the paths is in use
	paths   [2]clientPath
	closing bool
}

// clientPath is a local end: a socket and quic-go's transport over it.
type clientPath struct {
	socket    *Socket
	transport *quic.Transport
	pc        net.PacketConn
	quic      *quic.Path // nil for that of the handshake
}

func (p clientPath) close() {
	if p.transport == nil {
		return
	}
	p.transport.Close()
	p.pc.Close()
}

// Dial connects. With Early and a cached session it returns before the
// handshake is done.
func Dial(ctx context.Context, o ClientOptions) (*Client, error) {
	remote, err := net.ResolveUDPAddr("udp", o.Server)
	if err != nil {
		return nil, err
	}
	if o.LocalIP == "" {
		o.LocalIP = "127.0.0.1"
		if remote.IP.To4() == nil {
			o.LocalIP = "::1"
		}
	}
	c := &Client{options: o, remote: remote}
	if c.paths[0], err = c.openPath(o.PacketConn); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, DialTimeout)
	defer cancel()
	dial := c.paths[0].transport.Dial
	if o.Early {
		dial = c.paths[0].transport.DialEarly
	}
	c.conn, err = dial(ctx, remote, o.tls(), o.quic())
	if err != nil {
		c.paths[0].close()
		return nil, err
	}
	c.h3 = (&http3.Transport{}).NewClientConn(c.conn)
	return c, nil
}

// openPath binds a socket, or takes pc.
func (c *Client) openPath(pc net.PacketConn) (clientPath, error) {
	p := clientPath{pc: pc}
	if pc == nil {
		s, err := OpenSocket(c.options.LocalIP)
		if err != nil {
			return p, err
		}
		if c.options.Rebindable {
			p.pc, p.socket = s, s
		} else {
			p.pc = s.conn // the plain socket: offloads stay on
		}
	}
	p.transport = &quic.Transport{Conn: p.pc}
	return p, nil
}

// Response is a whole HTTP response.
type Response struct {
	Status int
	Header http.Header
	Body   []byte
}

// Get requests a path and reads the response. A status other than 200 is not
// an error here.
func (c *Client) Get(ctx context.Context, path string) (Response, error) {
	return c.do(ctx, http.MethodGet, path, nil)
}

// GetEarly is Get in 0-RTT packets when the connection is not established yet.
// When the server rejects them the request is repeated after the handshake, as
// a browser does.
func (c *Client) GetEarly(ctx context.Context, path string) (Response, error) {
	r, err := c.do(ctx, http3.MethodGet0RTT, path, nil)
	if !errors.Is(err, quic.Err0RTTRejected) {
		return r, err
	}
	next, err := c.conn.NextConnection(ctx)
	if err != nil {
		return Response{}, fmt.Errorf("after the rejection of 0-RTT: %w", err)
	}
	c.conn, c.h3 = next, (&http3.Transport{}).NewClientConn(next)
	r, err = c.do(ctx, http.MethodGet, path, nil)
	if e, ok := errors.AsType[*quic.StreamError](err); ok && e.StreamID == 0 {
		// quic-go numbers streams anew after a rejection, and what the first
		// request still sends to end its stream 0 may hit the second one's.
		r, err = c.do(ctx, http.MethodGet, path, nil)
	}
	return r, err
}

// Post sends a body and reads the response.
func (c *Client) Post(ctx context.Context, path string, body io.Reader) (Response, error) {
	return c.do(ctx, http.MethodPost, path, body)
}

// Open sends a GET and returns when the header of the response is there; the
// caller reads and closes the body.
func (c *Client) Open(ctx context.Context, path string) (*http.Response, error) {
	req, err := c.request(ctx, http.MethodGet, path, nil)
	if err != nil {
		return nil, err
	}
	return c.h3.RoundTrip(req)
}

func (c *Client) request(ctx context.Context, method, path string, body io.Reader) (*http.Request, error) {
	host := c.options.Host
	if host == "" {
		host = "localhost"
	}
	return http.NewRequestWithContext(ctx, method, "https://"+host+path, body)
}

func (c *Client) do(ctx context.Context, method, path string, body io.Reader) (Response, error) {
	req, err := c.request(ctx, method, path, body)
	if err != nil {
		return Response{}, err
	}
	resp, err := c.h3.RoundTrip(req)
	if err != nil {
		return Response{}, err
	}
	return readResponse(resp)
}

func readResponse(resp *http.Response) (Response, error) {
	data, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return Response{}, err
	}
	return Response{Status: resp.StatusCode, Header: resp.Header, Body: data}, nil
}

// Whoami is what a worker says of itself.
type Whoami struct {
	Generation  uint32 `json:"generation"`
	Slot        uint16 `json:"slot"`
	Incarnation uint32 `json:"incarnation"`
	PID         int    `json:"pid"`
	ConfigHash  string `json:"config_hash"`
	Version     string `json:"version"`
	Protocol    string `json:"protocol"`
}

// WhoamiPath is the route that answers with the worker's identity.
const WhoamiPath = "/whoami"

// Whoami asks the worker that owns the connection for its name.
func (c *Client) Whoami(ctx context.Context) (Whoami, error) {
	r, err := c.Get(ctx, WhoamiPath)
	if err != nil {
		return Whoami{}, err
	}
	return parseWhoami(r)
}

func parseWhoami(r Response) (Whoami, error) {
	var w Whoami
	if r.Status != http.StatusOK {
		return w, fmt.Errorf("status %d", r.Status)
	}
	err := json.Unmarshal(r.Body, &w)
	return w, err
}

// Rebind gives the client another port without its knowledge.
//
// Preconditions: ClientOptions.Rebindable.
func (c *Client) Rebind() error { return c.activePath().socket.Rebind() }

// RebindTo gives the client another address without its knowledge.
//
// Preconditions: ClientOptions.Rebindable.
func (c *Client) RebindTo(ip string) error { return c.activePath().socket.RebindTo(ip) }

func (c *Client) activePath() clientPath {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.paths[c.active]
}

// Migrate moves the connection on purpose (RFC 9000 section 9): it probes the
// server from another port with a spare connection ID and switches when the
// path is proven. One call at a time.
//
// The path that it leaves is closed: quic-go v0.65 may send one more probe of
// a path that it uses already, and takes another of the server's connection
// IDs for it. Only closing the path gives that back, and without one to spare
// no further path can be probed.
//
// Preconditions: ClientOptions.Rebindable.
func (c *Client) Migrate(ctx context.Context) error {
	c.mu.Lock()
	next := 1 - c.active
	p := c.paths[next]
	c.mu.Unlock()
	var err error
	if p.transport == nil {
		p, err = c.openPath(nil)
	} else {
		err = p.socket.Rebind() // an end used before comes back from a new port
	}
	if err != nil {
		return fmt.Errorf("open path: %w", err)
	}
	c.mu.Lock()
	if c.closing {
		c.mu.Unlock()
		if c.paths[next].transport == nil {
			p.close()
		}
		return net.ErrClosed
	}
	c.paths[next] = p
	c.mu.Unlock()
	path, err := c.conn.AddPath(p.transport)
	if err != nil {
		return fmt.Errorf("add path: %w", err)
	}
	if err := path.Probe(ctx); err != nil {
		return errors.Join(fmt.Errorf("probe path: %w", err), path.Close())
	}
	if err := path.Switch(); err != nil {
		return fmt.Errorf("switch path: %w", err)
	}
	c.mu.Lock()
	former := c.paths[c.active].quic
	c.paths[next].quic = path
	c.active = next
	c.mu.Unlock()
	if former != nil {
		if err := former.Close(); err != nil {
			return fmt.Errorf("close former path: %w", err)
		}
	}
	return nil
}

// Conn is the QUIC connection.
func (c *Client) Conn() *quic.Conn { return c.conn }

// Lost is closed when the connection has ended, whoever ended it.
func (c *Client) Lost() <-chan struct{} { return c.conn.Context().Done() }

// Err is why the connection ended, nil while it lives.
func (c *Client) Err() error { return context.Cause(c.conn.Context()) }

// Close ends the connection in order and frees its sockets.
func (c *Client) Close() {
	c.mu.Lock()
	if c.closing {
		c.mu.Unlock()
		return
	}
	c.closing = true
	paths := c.paths
	c.mu.Unlock()
	c.h3.CloseWithError(quic.ApplicationErrorCode(http3.ErrCodeNoError), "")
	for _, p := range paths {
		p.close()
	}
}

// Vanish frees the sockets without a word to the server, as a client does
// that loses its network.
func (c *Client) Vanish() {
	c.mu.Lock()
	c.closing = true
	paths := c.paths
	c.mu.Unlock()
	for _, p := range paths {
		if p.pc != nil {
			p.pc.Close()
		}
	}
	for _, p := range paths {
		p.close()
	}
}
