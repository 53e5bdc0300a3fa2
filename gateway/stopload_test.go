package gateway

import (
	"io"
	"net/http"
	"testing"
	"time"
)

func TestStopUnderLoadEndsWithinTheGrace(t *testing.T) {
	h := start(t, "127.0.0.1:0", testOptions(t, Route{Path: "/", Speedtest: &Speedtest{}}))
	conns := make([]held, 12)
	for i := range conns {
		conns[i] = hold(t, h)
		req, err := http.NewRequest(http.MethodGet, "https://localhost/?bytes=100000000", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := conns[i].h3.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if i == 0 { // the others do not read
			go func() { _, _ = io.Copy(io.Discard, resp.Body) }()
		}
	}
	begin := time.Now()
	h.stop(t, time.Second)
	if took := time.Since(begin); took > 1500*time.Millisecond {
		t.Errorf("stop took %s", took)
	}
	for _, c := range conns {
		if err := c.closed(t); !isNoError(err) {
			t.Errorf("a connection was closed by %v", err)
		}
	}
}
