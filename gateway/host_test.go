package gateway

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/holdfast-quic/holdfast/worker"
)

// testHost is a worker without a supervisor: plain sockets on the loopback.
type testHost struct {
	log      *zap.Logger
	udp      net.PacketConn
	tr       *quic.Transport
	tcp      net.Listener
	keys     [][32]byte
	ready    chan struct{}
	orders   chan worker.DrainOrder
	stopping chan struct{}
	serving  chan struct{}
	grace    time.Duration
	idle     chan struct{}
	reopen   chan struct{}
	done     chan error
	requests atomic.Int64
	failures atomic.Int64
}

func (h *testHost) QUIC(string) (*quic.Transport, error)  { return h.tr, nil }
func (h *testHost) TCP(string) (net.Listener, error)      { return h.tcp, nil }
func (h *testHost) TicketKeys() [][32]byte                { return h.keys }
func (h *testHost) Ready() error                          { close(h.ready); return nil }
func (h *testHost) DrainOrders() <-chan worker.DrainOrder { return h.orders }
func (h *testHost) Serving() <-chan struct{}              { return h.serving }
func (h *testHost) Stopping() <-chan struct{}             { return h.stopping }
func (h *testHost) Grace() time.Duration                  { return h.grace }
func (h *testHost) Idle() <-chan struct{}                 { return h.idle }
func (h *testHost) ReopenLogs() <-chan struct{}           { return h.reopen }
func (h *testHost) Logger() *zap.Logger                   { return h.log }

func (h *testHost) CountRequest(failed bool) {
	h.requests.Add(1)
	if failed {
		h.failures.Add(1)
	}
}

// stop orders the end within the grace and returns what serve returned.
func (h *testHost) stop(t *testing.T, grace time.Duration) {
	t.Helper()
	h.grace = grace
	close(h.stopping)
	if err := <-h.done; err != nil {
		t.Errorf("serve returned %v", err)
	}
	h.done <- nil
}

// udpAddr is where HTTP/3 is.
func (h *testHost) udpAddr() string { return h.udp.LocalAddr().String() }

// tcpAddr is where HTTP/2 and HTTP/1.1 are.
func (h *testHost) tcpAddr() string { return h.tcp.Addr().String() }

// start serves the options on fresh sockets until the test ends.
func start(t *testing.T, address string, o Options) *testHost {
	t.Helper()
	udp, err := net.ListenPacket("udp", address)
	if err != nil {
		t.Skip(err)
	}
	tcp, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	h := &testHost{
		log: zaptest.NewLogger(t, zaptest.Level(zap.WarnLevel)), udp: udp, tcp: tcp,
		tr:    &quic.Transport{Conn: udp},
		keys:  [][32]byte{{1}, {2}},
		ready: make(chan struct{}), orders: make(chan worker.DrainOrder), stopping: make(chan struct{}), serving: make(chan struct{}),
		idle: make(chan struct{}), reopen: make(chan struct{}), done: make(chan error, 1),
	}
	go func() {
		h.done <- serve(context.WithoutCancel(t.Context()), h, identity{Generation: 7, Slot: 3, Incarnation: 9, PID: 42, ConfigHash: "sha256:aa", Version: o.Version}, o)
	}()
	select {
	case <-h.ready:
	case err := <-h.done:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		select {
		case err := <-h.done:
			if err != nil {
				t.Error(err)
			}
		default:
			close(h.idle)
			<-h.done
		}
		h.tr.Close()
		udp.Close()
		tcp.Close()
	})
	return h
}

// testOptions has one listener with all protocols, and the given routes.
func testOptions(t testing.TB, routes ...Route) Options {
	return Options{
		Version: "1.2.3",
		Listeners: []Listener{{
			Name: "public", Protocols: []string{ProtocolHTTP3, ProtocolHTTP2, ProtocolHTTP1},
			Certificates: []Certificate{testCertificate(t, "localhost")},
			QUIC:         QUIC{Allow0RTT: true},
		}},
		Routes: routes,
	}
}

func testCertificate(t testing.TB, name string) Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return Certificate{
		Chain: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:   pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}),
	}
}

// client is one user agent with connections of its own.
type client struct {
	http.RoundTripper
	base string
}

// clients returns one client per protocol.
func clients(t *testing.T, h *testHost) map[string]client {
	return map[string]client{
		ProtocolHTTP3: http3Client(t, h), ProtocolHTTP2: tcpClient(t, h, ProtocolHTTP2), ProtocolHTTP1: tcpClient(t, h, ProtocolHTTP1),
	}
}

func http3Client(t *testing.T, h *testHost) client {
	tr := &http3.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: "localhost"}}
	t.Cleanup(func() { tr.Close() })
	return client{tr, "https://" + h.udpAddr()}
}

func tcpClient(t *testing.T, h *testHost, protocol string) client {
	p := new(http.Protocols)
	p.SetHTTP1(protocol == ProtocolHTTP1)
	p.SetHTTP2(protocol == ProtocolHTTP2)
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: "localhost"}, Protocols: p}
	t.Cleanup(tr.CloseIdleConnections)
	return client{tr, "https://" + h.tcpAddr()}
}

// do sends a request and returns the response with its whole body.
func (c client) do(method, path string, body []byte) (*http.Response, []byte, error) {
	req, err := http.NewRequest(method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	resp, err := c.RoundTrip(req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp, b, err
}

// get is do for a response that has to come.
func (c client) get(t *testing.T, path string) (*http.Response, string) {
	t.Helper()
	resp, body, err := c.do(http.MethodGet, path, nil)
	if err != nil {
		t.Fatalf("GET %s%s: %v", c.base, path, err)
	}
	return resp, string(body)
}
