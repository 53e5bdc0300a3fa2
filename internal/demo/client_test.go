package demo

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// heard is a socket that tells from which ports something came.
type heard struct {
	net.PacketConn
	from chan int
}

func (h heard) ReadFrom(p []byte) (int, net.Addr, error) {
	n, addr, err := h.PacketConn.ReadFrom(p)
	if a, ok := addr.(*net.UDPAddr); ok {
		select {
		case h.from <- a.Port:
		default: // nobody is interested
		}
	}
	return n, addr, err
}

// startHeld serves /held, whose answer begins at once and ends when release is
// closed.
func startHeld(t *testing.T, release <-chan struct{}) (*net.UDPAddr, <-chan int) {
	t.Helper()
	pc, err := listenLoopback()
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/held", func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	tr := &quic.Transport{Conn: heard{pc, make(chan int, 64)}}
	l, err := tr.ListenEarly(http3.ConfigureTLSConfig(&tls.Config{Certificates: []tls.Certificate{selfSigned(t)}}), nil)
	if err != nil {
		t.Fatal(err)
	}
	server, done := &http3.Server{Handler: mux}, make(chan struct{})
	go func() {
		defer close(done)
		_ = server.ServeListener(l)
	}()
	t.Cleanup(func() {
		server.Close()
		tr.Close()
		pc.Close()
		<-done
	})
	return pc.LocalAddr().(*net.UDPAddr), tr.Conn.(heard).from
}

func selfSigned(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{serverName}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// A client that waits for an answer and has nothing to send tells the server
// of each new port all the same.
func TestWaitingClientIsHeardFromEachNewPort(t *testing.T) {
	release := make(chan struct{})
	addr, from := startHeld(t, release)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c, err := dial(ctx, addr, newTally(), KindSteady)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	resp, err := c.get(ctx, "/held") // returns with the header
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	// What is left to say of the handshake makes the client heard once or
	// twice; after that only it itself does. Another answer proves that the
	// server has followed: quic-go has to learn a new connection ID from a
	// client before it can follow it for a third time.
	for range 3 {
		if err := c.swapPort(ctx); err != nil {
			t.Fatal(err)
		}
		port := c.socket.LocalAddr().(*net.UDPAddr).Port
		for heard := 0; heard != port; {
			select {
			case heard = <-from:
			case <-ctx.Done():
				t.Fatalf("never heard from port %d of the client", port)
			}
		}
		next, err := c.get(ctx, "/")
		if err != nil {
			t.Fatalf("request from port %d: %v", port, err)
		}
		next.Body.Close()
	}
	close(release)
	if _, err := resp.Body.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("end of the answer: %v", err)
	}
	if s := c.state(time.Now()); s.LastMove != MovePort || s.Kind != KindSteady {
		t.Errorf("state %+v", s)
	}
}

func TestReportTellsOfFailures(t *testing.T) {
	tally := newTally()
	c := &client{tally: tally, kind: KindSteady, opened: time.Now().Add(-12 * time.Second)}
	c.generation.Store(3)
	c.moved.Store(&lastMove{how: MovePath, at: time.Now().Add(-7 * time.Second)})
	tally.blameClient(c, "request", time.Now().Add(-5*time.Second), errors.New("no answer"))
	tally.gap(5 * time.Second)
	tally.blame("reload 2", errors.New("refused"))
	r := Report{PacketsDropped: map[string]uint64{"queue_full": 2, "loop": 0, "dead_target": 1}}
	tally.fill(&r)
	r.judge()
	var out strings.Builder
	if err := r.Print(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"1 dead_target, 2 queue_full",
		"5000 ms",
		"Something was lost:\n",
		"  request: no answer (steady requests, waited 5.0 s, connected 12.0 s ago to generation 3, new path 7.0 s ago)\n",
		"  reload 2: refused\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, out.String())
		}
	}
	if r.OK || !strings.Contains((&Report{}).dropped(), "none") {
		t.Errorf("report %+v", r)
	}
}

func TestReportTellsOfAFewFailuresOnly(t *testing.T) {
	tally, r := newTally(), Report{}
	for range 2 * maxFailures {
		tally.blame("request", errors.New("no answer"))
	}
	tally.fill(&r)
	if len(r.Failures) != maxFailures {
		t.Errorf("%d failures", len(r.Failures))
	}
}
