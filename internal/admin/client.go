package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"syscall"
)

// maxAnswer bounds what a command reads from a supervisor.
const maxAnswer = 256 << 20

// Codes of an Error that commands treat differently.
const (
	CodeInvalidConfig = "invalid_config"
	CodeUsage         = "usage"
	CodeTimeout       = "timeout"
	CodeBusy          = "busy"
)

// ErrNotRunning means that no supervisor listens in the runtime directory.
var ErrNotRunning = errors.New("no supervisor is running")

// Error is a refusal or a failure that the supervisor answered with.
type Error struct {
	Status int    // of HTTP
	Code   string // what kind of failure; may be empty
	Reason string // one line
}

// Error returns the reason.
func (e *Error) Error() string { return e.Reason }

// Client talks to one supervisor.
type Client struct {
	socket string
	http   http.Client
}

// New returns a client of the supervisor that listens on the Unix socket. It
// does not connect.
func New(socket string) *Client {
	c := &Client{socket: socket}
	c.http.Transport = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
		DisableCompression: true,
	}
	return c
}

// Close gives idle connections back.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Get returns the body that the supervisor answers with.
func (c *Client) Get(ctx context.Context, path string) ([]byte, error) {
	return c.do(ctx, http.MethodGet, path, nil)
}

// Post sends body as JSON, unless it is nil, and returns the answer.
func (c *Client) Post(ctx context.Context, path string, body any) ([]byte, error) {
	return c.do(ctx, http.MethodPost, path, body)
}

// Status returns what the instance is doing.
func (c *Client) Status(ctx context.Context) (*Status, error) {
	data, err := c.Get(ctx, "/v1/status")
	if err != nil {
		return nil, err
	}
	s := new(Status)
	if err := json.Unmarshal(data, s); err != nil {
		return nil, fmt.Errorf("read status: %w", err)
	}
	return s, nil
}

func (c *Client) do(ctx context.Context, method, path string, body any) ([]byte, error) {
	var in io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		in = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://holdfast"+path, in)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	if resp.StatusCode/100 != 2 {
		return nil, refusal(resp.StatusCode, data)
	}
	return data, nil
}

// unreachable says what a failed exchange means.
func (c *Client) unreachable(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("%w: nobody listens on %s", ErrNotRunning, c.socket)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s belongs to another user: %w", c.socket, fs.ErrPermission)
	}
	return fmt.Errorf("talk to the supervisor on %s: %w", c.socket, err)
}

// refusal reads the body of an answer that is no success.
func refusal(status int, body []byte) error {
	e := &Error{Status: status}
	var answer struct {
		Code   string `json:"code"`
		Reason string `json:"error"`
	}
	if err := json.Unmarshal(body, &answer); err == nil && answer.Reason != "" {
		e.Code, e.Reason = answer.Code, answer.Reason
		return e
	}
	e.Reason = string(bytes.TrimSpace(body))
	if e.Reason == "" {
		e.Reason = http.StatusText(status)
	}
	return e
}
