package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/holdfast-quic/holdfast/worker"
)

var (
	goAway = worker.DrainOrder{Mode: worker.DrainGoAway}
	holdOn = worker.DrainOrder{Mode: worker.DrainHold}
)

// slowUpstream answers a request when it is let go.
func slowUpstream(t *testing.T) (url string, arrived <-chan struct{}, release func()) {
	in, out := make(chan struct{}, 100), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		in <- struct{}{}
		<-out
		_, _ = io.WriteString(w, "whole")
	}))
	release = sync.OnceFunc(func() { close(out) })
	t.Cleanup(s.Close)
	t.Cleanup(release)
	return s.URL, in, release
}

// held is one HTTP/3 connection that is never replaced.
type held struct {
	conn *quic.Conn
	h3   *http3.ClientConn
}

func hold(t *testing.T, h *testHost) held {
	t.Helper()
	conn, err := quic.DialAddr(t.Context(), h.udpAddr(), &tls.Config{InsecureSkipVerify: true, ServerName: "localhost", NextProtos: []string{ProtocolHTTP3}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.CloseWithError(0x100, "") })
	return held{conn, (&http3.Transport{}).NewClientConn(conn)}
}

func (c held) get(path string) (string, error) {
	req, err := http.NewRequest(http.MethodGet, "https://localhost"+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := c.h3.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

// closed waits for the end of the connection and returns its reason.
func (c held) closed(t *testing.T) error {
	t.Helper()
	select {
	case <-c.conn.Context().Done():
		return context.Cause(c.conn.Context())
	case <-time.After(10 * time.Second):
		t.Fatal("the connection is not closed")
		return nil
	}
}

// isNoError reports whether the connection was closed in order: by the server,
// or by the client once it had GOAWAY and all answers.
func isNoError(err error) bool {
	e, ok := errors.AsType[*quic.ApplicationError](err)
	return ok && e.ErrorCode == quic.ApplicationErrorCode(http3.ErrCodeNoError)
}

func TestHoldChangesNothing(t *testing.T) {
	h := start(t, "127.0.0.1:0", testOptions(t, Route{Path: "/", Respond: &Respond{Body: "x"}}))
	c := hold(t, h)
	one := tcpClient(t, h, ProtocolHTTP1)
	for range 2 {
		if _, err := c.get("/"); err != nil {
			t.Fatal(err)
		}
		if resp, _ := one.get(t, "/"); resp.Close {
			t.Error("HTTP/1.1 was told goodbye")
		}
		h.orders <- holdOn
		h.orders <- holdOn // has been seen when the second is taken
	}
	// A handshake that was under way when the drain began completes too.
	if _, err := hold(t, h).get("/"); err != nil {
		t.Error(err)
	}
}

func TestHTTP3GoAwayFinishesWhatRunsAndRejectsTheRest(t *testing.T) {
	url, arrived, release := slowUpstream(t)
	h := start(t, "127.0.0.1:0", testOptions(t, Route{Path: "/", Proxy: &Proxy{Upstreams: []string{url}}}))
	c := hold(t, h)
	type answer struct {
		body string
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		body, err := c.get("/")
		answers <- answer{body, err}
	}()
	<-arrived
	h.orders <- goAway

	// The client of quic-go refuses by itself once GOAWAY is there; before,
	// the server rejects. Both say that the request was not processed.
	var err error
	for deadline := time.Now().Add(5 * time.Second); err == nil && time.Now().Before(deadline); {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "https://localhost/late", nil)
		var resp *http.Response
		if resp, err = c.h3.RoundTrip(req); err == nil {
			resp.Body.Close()
		} else if errors.Is(err, context.DeadlineExceeded) {
			err = nil // it reached the upstream before the goodbye
		}
		cancel()
	}
	if err == nil {
		t.Error("requests after GOAWAY are answered")
	}
	release()
	if a := <-answers; a.err != nil || a.body != "whole" {
		t.Errorf("the running request got %q, %v", a.body, a.err)
	}
	if err := c.closed(t); !isNoError(err) {
		t.Errorf("the connection was closed by %v", err)
	}
	if _, err := hold(t, h).get("/"); err != nil && !isNoError(err) {
		// A connection that comes after the window is told at once, which is no failure.
		t.Log(err)
	}
}

func TestStreamsAfterGoAwayAreRejected(t *testing.T) {
	url, arrived, _ := slowUpstream(t)
	h := start(t, "127.0.0.1:0", testOptions(t, Route{Path: "/", Proxy: &Proxy{Upstreams: []string{url}}}))
	c := hold(t, h)
	go func() { _, _ = c.get("/") }() // keeps the connection busy
	<-arrived
	h.orders <- goAway
	want := quic.StreamErrorCode(http3.ErrCodeRequestRejected)
	for deadline := time.Now().Add(5 * time.Second); ; {
		// A client that does not know GOAWAY: raw streams with nothing but a header frame's start.
		str, err := c.conn.OpenStreamSync(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = str.Write([]byte{0x1, 0x1})
		_ = str.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		_, err = str.Read(make([]byte, 1))
		if e, ok := errors.AsType[*quic.StreamError](err); ok && e.Remote && e.ErrorCode == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("a stream after GOAWAY ends with %v", err)
		}
	}
}

func TestStopSendsWholeResponsesThenConnectionClose(t *testing.T) {
	url, arrived, release := slowUpstream(t)
	h := start(t, "127.0.0.1:0", testOptions(t, Route{Path: "/", Proxy: &Proxy{Upstreams: []string{url}}}))
	conns := make([]held, 8)
	errs := make(chan error, len(conns))
	for i := range conns {
		conns[i] = hold(t, h)
		go func() {
			body, err := conns[i].get("/")
			if err == nil && body != "whole" {
				err = errors.New("answered " + body)
			}
			errs <- err
		}()
		<-arrived
	}
	idle := hold(t, h)
	time.AfterFunc(200*time.Millisecond, release)
	begin := time.Now()
	h.stop(t, 10*time.Second)
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("stop took %s", took)
	}
	for range conns {
		if err := <-errs; err != nil {
			t.Errorf("a response in flight is broken: %v", err)
		}
	}
	for _, c := range append(conns, idle) {
		if err := c.closed(t); !isNoError(err) {
			t.Errorf("a connection was closed by %v", err)
		}
	}
}

func TestStopEndsAConnectionThatIsNeverDone(t *testing.T) {
	url, arrived, _ := slowUpstream(t)
	h := start(t, "127.0.0.1:0", testOptions(t, Route{Path: "/", Proxy: &Proxy{Upstreams: []string{url}}}))
	c := hold(t, h)
	go func() { _, _ = c.get("/") }()
	<-arrived
	h.stop(t, 400*time.Millisecond)
	if err := c.closed(t); !isNoError(err) {
		t.Errorf("the connection was closed by %v", err)
	}
}

func TestHTTP2GoAwayFinishesWhatRuns(t *testing.T) {
	url, arrived, release := slowUpstream(t)
	h := start(t, "127.0.0.1:0", testOptions(t, Route{Path: "/slow", Proxy: &Proxy{Upstreams: []string{url}}}, Route{Path: "/", Respond: &Respond{Body: "x"}}))
	c := tcpClient(t, h, ProtocolHTTP2)
	errs := make(chan error, 1)
	go func() {
		_, body, err := c.do(http.MethodGet, "/slow", nil)
		if err == nil && string(body) != "whole" {
			err = errors.New("answered " + string(body))
		}
		errs <- err
	}()
	<-arrived
	h.orders <- goAway
	// net/http's client goes to a new connection once it has seen GOAWAY.
	for range 20 {
		if _, body := c.get(t, "/"); body != "x" {
			t.Fatalf("answered %q", body)
		}
	}
	release()
	if err := <-errs; err != nil {
		t.Errorf("the running request is broken: %v", err)
	}
}

func TestHTTP1GoodbyeIsSaidInTheNextResponse(t *testing.T) {
	h := start(t, "127.0.0.1:0", testOptions(t, Route{Path: "/", Respond: &Respond{Body: "x"}}))
	conn, err := tls.Dial("tcp", h.tcpAddr(), &tls.Config{InsecureSkipVerify: true, ServerName: "localhost", NextProtos: []string{ProtocolHTTP1}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	request := func() string {
		_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
		buf := make([]byte, 4096)
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		n, err := conn.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		return string(buf[:n])
	}
	if got := request(); strings.Contains(got, "Connection: close") {
		t.Errorf("goodbye too early: %s", got)
	}
	h.orders <- goAway
	h.orders <- goAway          // taken after the first was acted on
	time.Sleep(3 * goodbyeTick) // the round that says it; there is nothing to wait for on the wire
	if got := request(); !strings.Contains(got, "Connection: close") || !strings.Contains(got, "200 OK") {
		t.Errorf("late request answered with %s", got)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("connection ended with %v", err)
	}
}

func TestSessionsResumeWithZeroRTTInAnotherProcess(t *testing.T) {
	o := testOptions(t, Route{Path: "/", Whoami: &Whoami{}})
	first, second := start(t, "127.0.0.1:0", o), start(t, "127.0.0.1:0", o)
	conf := &tls.Config{InsecureSkipVerify: true, ServerName: "localhost", NextProtos: []string{ProtocolHTTP3}, ClientSessionCache: tls.NewLRUClientSessionCache(4)}
	c, err := quic.DialAddrEarly(t.Context(), first.udpAddr(), conf, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (held{c, (&http3.Transport{}).NewClientConn(c)}).get("/"); err != nil {
		t.Fatal(err)
	}
	_ = c.CloseWithError(0x100, "")
	c, err = quic.DialAddrEarly(t.Context(), second.udpAddr(), conf, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseWithError(0x100, "")
	if _, err := (held{c, (&http3.Transport{}).NewClientConn(c)}).get("/"); err != nil {
		t.Fatal(err)
	}
	if !c.ConnectionState().Used0RTT {
		t.Error("the ticket of one process is not good for 0-RTT in another")
	}
}
