package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

const (
	adminHeaderTimeout = 5 * time.Second
	adminWriteTimeout  = 10 * time.Second // for one answer, or one event of a stream
	adminIdleTimeout   = 30 * time.Second
	adminCloseTimeout  = 2 * time.Second
	settlePatience     = 250 * time.Millisecond // an answer is written in much less
	adminMaxConns      = 256
	adminMaxBody       = 64 << 10
)

// admin serves the admin API. Its handlers run in the goroutines of net/http
// and never hold up the loop: they hand it a function, and write what that
// returned afterwards.
type admin struct {
	s        *Supervisor
	server   *http.Server
	socket   *os.File     // the listening socket, as it outlives this process
	listener net.Listener // another descriptor of it
	served   chan struct{}
	owed     atomic.Int32 // answers with an operation's number, not written yet
}

// openAdmin serves the socket that listens on path already, or opens one there.
// It owns socket.
//
// Preconditions: the instance lock is held; nothing lies at path if socket is
// nil.
func openAdmin(s *Supervisor, path string, socket *os.File) (*admin, error) {
	if socket == nil {
		var err error
		if socket, err = listenAdmin(path); err != nil {
			return nil, err
		}
	}
	a := &admin{s: s, socket: socket}
	a.server = &http.Server{
		Handler:           a.handler(),
		ReadHeaderTimeout: adminHeaderTimeout,
		ReadTimeout:       adminWriteTimeout,
		IdleTimeout:       adminIdleTimeout,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          log.New(io.Discard, "", 0), // clients that hang up are no news
	}
	if err := a.serve(); err != nil {
		socket.Close()
		return nil, err
	}
	return a, nil
}

// serve accepts connections until the listener is closed.
func (a *admin) serve() error {
	l, err := net.FileListener(a.socket)
	if err != nil {
		return fmt.Errorf("open the admin socket: %w", err)
	}
	unix, ok := l.(*net.UnixListener)
	if !ok {
		l.Close()
		return fmt.Errorf("open the admin socket: it is a %T", l)
	}
	a.listener, a.served = &guardedListener{UnixListener: unix, room: make(chan struct{}, adminMaxConns), refused: refusals{log: a.s.log}}, make(chan struct{})
	go func(l net.Listener, served chan<- struct{}) {
		defer close(served)
		if err := a.server.Serve(l); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			a.s.log.Error("admin API", zap.Error(err))
		}
	}(a.listener, a.served)
	return nil
}

// listenAdmin opens the socket with mode 0600, at no moment wider.
func listenAdmin(path string) (*os.File, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("open the admin socket: %w", err)
	}
	l.SetUnlinkOnClose(false) // the instance removes it, under its lock
	// The directory, mode 0700, guards it meanwhile.
	defer l.Close()
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, fmt.Errorf("open the admin socket: %w", err)
	}
	f, err := l.File()
	if err != nil {
		return nil, fmt.Errorf("open the admin socket: %w", err)
	}
	return f, nil
}

// close lets answers that are being written finish, for a moment.
func (a *admin) close() {
	ctx, cancel := context.WithTimeout(context.Background(), adminCloseTimeout)
	defer cancel()
	if a.server.Shutdown(ctx) != nil {
		a.server.Close()
	}
	<-a.served
	a.socket.Close()
}

func (a *admin) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", a.status)
	mux.HandleFunc("GET /v1/conns", a.conns)
	mux.HandleFunc("POST /v1/conns/close", a.closeConn)
	mux.HandleFunc("GET /v1/events", a.events)
	mux.HandleFunc("GET /v1/check-segment", a.checkSegment)
	mux.HandleFunc("POST /v1/reload", a.reload)
	mux.HandleFunc("POST /v1/upgrade", a.upgrade)
	mux.HandleFunc("GET /v1/operations/{id}", a.operation)
	mux.HandleFunc("POST /v1/promote", a.promote)
	mux.HandleFunc("POST /v1/rollback", a.rollback)
	mux.HandleFunc("POST /v1/drain", a.drain)
	mux.HandleFunc("POST /v1/stop", a.stop)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		a.fail(w, fmt.Errorf("%w: there is no %s %s", ErrNotFound, r.Method, r.URL.Path))
	})
	return mux
}

// answer writes v as JSON. A client that does not read is cut off.
func (a *admin) answer(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	// Without support for deadlines there is none: a test's recorder.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(adminWriteTimeout))
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // the client has hung up
}

// Error is the body of an answer that is none of success.
type Error struct {
	Reason string `json:"error"` // one line
	Code   string `json:"code"`  // one of the Code constants
}

func (a *admin) fail(w http.ResponseWriter, err error) {
	code := codeOf(err)
	status := map[string]int{
		CodeInvalidConfig: http.StatusUnprocessableEntity, CodeFailed: http.StatusInternalServerError,
		CodeBusy: http.StatusServiceUnavailable, CodeTimeout: http.StatusGatewayTimeout, CodeUsage: http.StatusBadRequest,
	}[code]
	switch {
	case errors.Is(err, ErrNotFound):
		status = http.StatusNotFound
	case errors.Is(err, ErrState):
		status = http.StatusConflict
	}
	a.answer(w, status, Error{Reason: oneLine(err), Code: code})
}

// body decodes the request's JSON; an empty body leaves into as it is.
func (a *admin) body(w http.ResponseWriter, r *http.Request, into any) error {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, adminMaxBody))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: body: %w", ErrUsage, err)
	}
	return nil
}

// wait waits for a result that the loop promised. Long waits have no deadline
// of ours: the client has one, and hangs up.
func wait[T any](ctx context.Context, s *Supervisor, ch <-chan T) (v T, err error) {
	select {
	case v = <-ch:
		return v, nil
	case <-ctx.Done():
		return v, fmt.Errorf("%w: %w", ErrTimeout, ctx.Err())
	case <-s.done:
		return v, ErrStopping
	}
}
