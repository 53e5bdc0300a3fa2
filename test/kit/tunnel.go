package kit

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// TunnelPath is where TunnelRoute puts the tunnel of an upstream.
const TunnelPath = "/tunnel"

// TunnelRoute runs an upstream that takes HTTP/1.1 connections over by an
// Upgrade, as websockets do, and returns the route to it. A tunnel echoes what
// it gets; with flood it sends without end instead.
func TunnelRoute(t testing.TB, flood bool) (route string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		fmt.Fprint(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		if flood {
			io.Copy(c, endless{})
			return
		}
		io.Copy(c, rw)
	}))
	t.Cleanup(s.Close)
	return fmt.Sprintf("{path: %s, proxy: {upstreams: [%q]}}", TunnelPath, s.URL)
}

// OpenTunnel connects with HTTP/1.1 and asks for the upgrade of TunnelRoute.
// The connection is closed when the test ends.
func OpenTunnel(t testing.TB, server string) net.Conn {
	t.Helper()
	conf := ClientOptions{}.tls()
	conf.NextProtos = []string{"http/1.1"}
	c, err := tls.DialWithDialer(&net.Dialer{Timeout: DialTimeout}, "tcp", server, conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(DialTimeout))
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n", TunnelPath)
	r := bufio.NewReaderSize(c, 16)        // a tunnel that floods sends more than the header
	resp, err := http.ReadResponse(r, nil) //nolint:bodyclose // after a 101 the body is the tunnel itself
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("upgrade: %v, %v", resp, err)
	}
	c.SetDeadline(time.Time{})
	return c
}
