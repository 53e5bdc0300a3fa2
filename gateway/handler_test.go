package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

func TestLongestPathWins(t *testing.T) {
	r, err := newRouter([]Route{
		{Path: "/", Respond: &Respond{Status: 201}},
		{Path: "/a/", Respond: &Respond{Status: 202}},
		{Path: "/a/b", Respond: &Respond{Status: 203}},
		{Path: "/only", Respond: &Respond{Status: 204}},
	}, routeEnv{})
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{"/": 201, "/x": 201, "/a": 201, "/a/": 202, "/a/x": 202, "/a/b": 203, "/a/b/c": 202, "/only": 204, "/only/": 201} {
		if got := serveLocally(r, http.MethodGet, path); got != want {
			t.Errorf("%s is answered by %d, expected %d", path, got, want)
		}
	}
	none, _ := newRouter([]Route{{Path: "/x", Respond: &Respond{}}}, routeEnv{})
	if got := serveLocally(none, http.MethodGet, "/"); got != http.StatusNotFound {
		t.Errorf("no route: %d", got)
	}
}

func TestUnsafeRequestsWaitForTheHandshake(t *testing.T) {
	routes, _ := newRouter([]Route{{Path: "/", Respond: &Respond{}}}, routeEnv{})
	h := &handler{listener: &Listener{Protocols: []string{ProtocolHTTP3}}, routes: routes, count: func(bool) {}, log: testLog(t)}
	confirmed := make(chan struct{})
	request := func(ctx context.Context, method string) (status int) {
		defer func() {
			if recover() != nil {
				status = -1 // the response was cut off
			}
		}()
		w := httptest.NewRecorder()
		r := httptest.NewRequest(method, "https://localhost/", nil).WithContext(withTraffic(ctx, &traffic{confirmed: confirmed}))
		r.ProtoMajor = 3
		h.ServeHTTP(w, r)
		return w.Code
	}
	if got := request(t.Context(), http.MethodGet); got != 200 {
		t.Errorf("GET before the handshake is complete: %d", got)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if got := request(gone, http.MethodPost); got != -1 {
		t.Errorf("POST in a handshake that is never completed: %d", got)
	}
	close(confirmed)
	if got := request(t.Context(), http.MethodPost); got != 200 {
		t.Errorf("POST afterwards: %d", got)
	}
}

func TestSpeedtestSendsWithoutAllocating(t *testing.T) {
	h := newSpeedtest(&Speedtest{})
	r := httptest.NewRequest(http.MethodGet, "https://localhost/?bytes=10000000", nil)
	few := testing.AllocsPerRun(10, func() { h.ServeHTTP(&nowhere{http.Header{}}, r) })
	r = httptest.NewRequest(http.MethodGet, "https://localhost/?bytes=100000000", nil)
	many := testing.AllocsPerRun(10, func() { h.ServeHTTP(&nowhere{http.Header{}}, r) })
	if many > few+1 {
		t.Errorf("ten times the bytes cost %v allocations, not %v", many, few)
	}
}

// nowhere is a client that takes everything.
type nowhere struct{ header http.Header }

func (n *nowhere) Header() http.Header         { return n.header }
func (n *nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (n *nowhere) WriteHeader(int)             {}

func TestAPanickingHandlerEndsOneResponseOnly(t *testing.T) {
	broken := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	h := &handler{
		listener: &Listener{Protocols: []string{ProtocolHTTP1}},
		log:      testLog(t),
		count:    func(bool) {},
		routes:   &router{entries: []entry{{"/", broken}}},
	}
	s := &traffic{}
	func() {
		defer func() {
			if err, ok := recover().(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
				t.Error("the server is not told to break the response off")
			}
		}()
		r := httptest.NewRequest(http.MethodGet, "https://localhost/", nil)
		h.ServeHTTP(httptest.NewRecorder(), r.WithContext(withTraffic(r.Context(), s)))
	}()
	if n := s.requests.Load(); n != 0 {
		t.Errorf("%d requests are still counted", n)
	}
}

func TestAddressesOfIPv4ClientsAreShownAsSuch(t *testing.T) {
	for in, want := range map[string]string{
		"[::ffff:192.0.2.1]:443": "192.0.2.1:443", "192.0.2.1:443": "192.0.2.1:443", "[2001:db8::1]:1": "[2001:db8::1]:1", "nonsense": "nonsense",
	} {
		if got := unmapped(in); got != want {
			t.Errorf("%s is shown as %s", in, got)
		}
	}
}

// dialHTTP1 is a connection that negotiated HTTP/1.1.
func dialHTTP1(t *testing.T, h *testHost) *tls.Conn {
	t.Helper()
	conn, err := tls.Dial("tcp", h.tcpAddr(), &tls.Config{InsecureSkipVerify: true, ServerName: "localhost", NextProtos: []string{ProtocolHTTP1}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	return conn
}

func TestHTTP1IsRefusedWhereItIsNotOffered(t *testing.T) {
	o := testOptions(t, Route{Path: "/", Respond: &Respond{}})
	o.Listeners[0].Protocols = []string{ProtocolHTTP2}
	h := start(t, "127.0.0.1:0", o)
	conn, err := tls.Dial("tcp", h.tcpAddr(), &tls.Config{InsecureSkipVerify: true, ServerName: "localhost"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	answer, err := io.ReadAll(conn)
	if err != nil || !bytes.HasPrefix(answer, []byte("HTTP/1.1 505")) {
		t.Errorf("answered %q, %v", answer, err)
	}
}

// What a canary is judged by: answers of 500 and more, and handlers that panic,
// but not what a client asked for in vain.
func TestFailedRequestsAreCounted(t *testing.T) {
	for what, answer := range map[string]http.HandlerFunc{
		"500":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"panic": func(http.ResponseWriter, *http.Request) { panic("broken") },
		"404":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) },
		"abort": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"200":   func(http.ResponseWriter, *http.Request) {},
	} {
		var all, failed int
		h := &handler{
			listener: &Listener{Protocols: []string{ProtocolHTTP1}}, log: testLog(t),
			routes: &router{entries: []entry{{"/", answer}}},
			count: func(bad bool) {
				all++
				if bad {
					failed++
				}
			},
		}
		for _, path := range []string{"/", ProbePath} {
			func() {
				defer func() { _ = recover() }()
				h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "https://localhost"+path, nil))
			}()
		}
		want := 0
		if what == "500" || what == "panic" {
			want = 1
		}
		if all != 1 || failed != want {
			t.Errorf("%s: %d of %d failed, want %d of 1", what, failed, all, want)
		}
	}
}
