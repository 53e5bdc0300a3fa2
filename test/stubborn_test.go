package test

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/holdfast-quic/holdfast/test/kit"
)

// zeroWindow asks for a path over HTTP/2 and never grants a byte of it. It
// returns what the server's GOAWAY said once the connection has ended.
func zeroWindow(t *testing.T, server, path string) (ended <-chan error) {
	t.Helper()
	conn, err := tls.Dial("tcp", server, &tls.Config{InsecureSkipVerify: true, ServerName: "localhost", NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	var fields bytes.Buffer
	enc := hpack.NewEncoder(&fields)
	for _, f := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", "localhost"}, {":path", path}} {
		if err := enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			t.Fatal(err)
		}
	}
	framer := http2.NewFramer(conn, conn)
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: fields.Bytes(), EndStream: true, EndHeaders: true})
	answered, end := make(chan struct{}), make(chan error, 1)
	go func() {
		goaway := fmt.Errorf("no GOAWAY")
		for {
			f, err := framer.ReadFrame()
			if err != nil {
				end <- goaway
				return
			}
			switch f := f.(type) {
			case *http2.SettingsFrame:
				if !f.IsAck() {
					framer.WriteSettingsAck()
				}
			case *http2.HeadersFrame:
				close(answered)
			case *http2.GoAwayFrame:
				goaway = nil
				if f.ErrCode != http2.ErrCodeNo {
					goaway = fmt.Errorf("GOAWAY with %v", f.ErrCode)
				}
			}
		}
	}()
	select {
	case <-answered:
	case err := <-end:
		t.Fatalf("the connection ended before the answer: %v", err)
	case <-time.After(kit.DialTimeout):
		t.Fatal("no answer")
	}
	return end
}

// neverReads asks for a path over HTTP/1.1 and reads nothing of the answer.
func neverReads(t *testing.T, server, path string) {
	t.Helper()
	conn, err := tls.Dial("tcp", server, &tls.Config{InsecureSkipVerify: true, ServerName: "localhost", NextProtos: []string{"http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path)
}

// C010: a peer that takes nothing, and a tunnel that never ends, hold up
// nobody beyond the hard limit.
func TestPeersThatNeverReadEndAtTheLimit(t *testing.T) {
	const limit = 2 * time.Second
	c := kit.Config{Routes: []string{kit.TunnelRoute(t, true)}}
	in := startWith(t, c.With("drain", fmt.Sprintf("{timeout: %v, stop_timeout: 1s}", limit)))
	in.WriteFile("big", 32<<20) // more than all buffers on the way hold
	h2 := zeroWindow(t, in.Addr(), "/files/big")
	neverReads(t, in.Addr(), "/files/big")
	kit.OpenTunnel(t, in.Addr())
	o := in.Client()
	o.StreamWindow = 16 << 10
	stuck := dial(t, o)
	response, err := stuck.Open(stuck.Conn().Context(), "/files/big")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	in.AwaitStatus(5*time.Second, "all of them are held", func(s kit.Status) error {
		g, _ := s.Current()
		if quic, tcp := g.Connections(); quic != 1 || tcp != 3 {
			return fmt.Errorf("%d QUIC, %d TCP", quic, tcp)
		}
		return nil
	})
	begin := time.Now()
	in.Reload()
	awaitOnlyCurrent(t, in, limit+2*time.Second)
	t.Logf("old generation gone after %v", time.Since(begin).Round(time.Millisecond))
	if cause := awaitLost(t, stuck, time.Second); !orderly(cause) {
		t.Errorf("QUIC connection ended by %s", cause)
	}
	select {
	case err := <-h2:
		if err != nil {
			t.Errorf("the HTTP/2 connection ended: %v", err)
		}
	case <-time.After(time.Second):
		t.Error("the HTTP/2 connection has not ended")
	}
}

// C022: status and the list of connections say of an old generation how old
// it is, when it must end, how many it holds of each kind and since when; one
// of them can be ended by name, and it goes with the last.
func TestWhatHoldsAnOldGenerationIsShown(t *testing.T) {
	c := kit.Config{Workers: 1, Routes: []string{kit.TunnelRoute(t, false)}}
	in := startWith(t, c.With("drain", "{timeout: 1h}"))
	oldest := dial(t, in.Client())
	owner := whoami(t, oldest)
	second := dial(t, in.Client())
	whoami(t, second)
	var tunnels []net.Conn
	for range 3 {
		tunnels = append(tunnels, kit.OpenTunnel(t, in.Addr()))
	}
	h2 := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 1, TCP: "h2", Interval: 50 * time.Millisecond})
	kit.Eventually(t, 5*time.Second, "the HTTP/2 client is at work", func() error {
		if r := h2.Report(); r.Requests == 0 {
			return fmt.Errorf("%v", r)
		}
		return nil
	})
	begin := time.Now()
	in.Reload()
	in.AwaitStatus(5*time.Second, "counted by kind", func(s kit.Status) error {
		g, ok := s.Generation(owner.Generation)
		if !ok || g.State != "draining" || len(g.Workers) != 1 {
			return fmt.Errorf("old generation: %+v", g)
		}
		if w := g.Workers[0].Connections; w.QUIC != 2 || w.TCP != 4 {
			return fmt.Errorf("its worker has %+v", w)
		}
		if g.Deadline == nil || time.Until(*g.Deadline) > time.Hour || time.Until(*g.Deadline) < 59*time.Minute {
			return fmt.Errorf("it ends at %v", g.Deadline)
		}
		if g.Since.Before(begin) || g.Since.After(time.Now()) {
			return fmt.Errorf("it drains since %v, the reload began %v", g.Since, begin)
		}
		return nil
	})
	if out := in.CLI("status").Stdout; !containsAll(out, "AGE", "ENDS IN", "59m", "draining") {
		t.Errorf("status says nothing of its time:\n%s", out)
	}
	held := in.Conns()
	if len(held) != 6 {
		t.Fatalf("%d connections listed: %+v", len(held), held)
	}
	first := held[0]
	for _, x := range held {
		if x.Generation != owner.Generation || x.Remote == "" || x.Since.IsZero() || x.Protocol == "" {
			t.Errorf("listed without detail: %+v", x)
		}
		if x.Since.Before(first.Since) {
			first = x
		}
	}
	if want := oldest.Conn().LocalAddr().String(); first.Remote != want {
		t.Errorf("the oldest peer is %s, want %s", first.Remote, want)
	}
	if r := in.CLI("conns", "close", first.ID); r.Code != 0 {
		t.Errorf("conns close %s: exit code %d: %s", first.ID, r.Code, r.Stderr)
	}
	if cause := awaitLost(t, oldest, 3*time.Second); !orderly(cause) {
		t.Errorf("connection ended by %s", cause)
	}
	whoami(t, second) // the others are not ended with it
	for i, tunnel := range tunnels {
		tunnel.SetDeadline(time.Now().Add(5 * time.Second))
		word := fmt.Sprint("still there ", i)
		fmt.Fprint(tunnel, word)
		got := make([]byte, len(word))
		if _, err := io.ReadFull(tunnel, got); err != nil || string(got) != word {
			t.Errorf("tunnel answers %q, %v", got, err)
		}
		tunnel.Close()
	}
	second.Close()
	h2.Stop().MustBeClean(t)
	awaitOnlyCurrent(t, in, 5*time.Second)
}
