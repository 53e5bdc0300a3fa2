package gateway

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// upstream answers with its name, the path and who the client is said to be.
func upstream(t *testing.T, name string) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s for=%s host=%s proto=%s body=%s", name, r.URL.RequestURI(), r.Header.Get("X-Forwarded-For"),
			r.Header.Get("X-Forwarded-Host"), r.Header.Get("X-Forwarded-Proto"), body)
	}))
	t.Cleanup(s.Close)
	return s
}

func TestProxyTakesUpstreamsInTurnAndSaysWhoAsks(t *testing.T) {
	a, b := upstream(t, "a"), upstream(t, "b")
	h := start(t, "127.0.0.1:0", testOptions(t, Route{Path: "/api/", Proxy: &Proxy{Upstreams: []string{a.URL, b.URL + "/base"}}}))
	for protocol, c := range clients(t, h) {
		seen := map[string]bool{}
		for range 4 {
			resp, body, err := c.do(http.MethodPost, "/api/x%2Fy?q=1", []byte("hi"))
			if err != nil || resp.StatusCode != 200 {
				t.Fatalf("%s: %v", protocol, err)
			}
			text := string(body)
			seen[strings.Join(strings.Fields(text)[:2], " ")] = true
			if !strings.Contains(text, "for=127.0.0.1 ") || !strings.Contains(text, "proto=https") || !strings.Contains(text, "body=hi") {
				t.Errorf("%s: upstream got %s", protocol, text)
			}
		}
		if !seen["a /api/x%2Fy?q=1"] || !seen["b /base/api/x%2Fy?q=1"] {
			t.Errorf("%s: asked %v", protocol, seen)
		}
	}
}

func TestProxyPassesOverAnUpstreamThatIsDown(t *testing.T) {
	down, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := "http://" + down.Addr().String()
	down.Close()
	h := start(t, "127.0.0.1:0", testOptions(t,
		Route{Path: "/", Proxy: &Proxy{Upstreams: []string{dead, upstream(t, "a").URL}}},
		Route{Path: "/dead/", Proxy: &Proxy{Upstreams: []string{dead}}}))
	c := http3Client(t, h)
	for range 4 {
		if resp, body := c.get(t, "/"); resp.StatusCode != 200 || !strings.HasPrefix(body, "a ") {
			t.Errorf("answered %d %s", resp.StatusCode, body)
		}
	}
	if resp, _ := c.get(t, "/dead/"); resp.StatusCode != http.StatusBadGateway {
		t.Errorf("without any upstream: %d", resp.StatusCode)
	}
}

func TestProxyPassesAnUpgradeOn(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "echo")
		w.WriteHeader(http.StatusSwitchingProtocols)
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		line, _ := rw.ReadString('\n')
		_, _ = io.WriteString(conn, "echo "+line)
	}))
	t.Cleanup(up.Close)
	o := testOptions(t, Route{Path: "/", Proxy: &Proxy{Upstreams: []string{up.URL}}})
	o.AccessLog.Path = t.TempDir() + "/access.log" // its recorder must not hide the connection
	h := start(t, "127.0.0.1:0", o)
	conn := dialHTTP1(t, h)
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("upgrade: %v, %v", resp, err)
	}
	h.orders <- goAway // ends nobody's upgraded connection
	h.orders <- goAway
	_, _ = io.WriteString(conn, "hello\n")
	if line, err := r.ReadString('\n'); err != nil || line != "echo hello\n" {
		t.Errorf("got %q, %v", line, err)
	}
	if _, err := r.ReadByte(); err == nil {
		t.Error("the upstream's end is not passed on")
	}
}
