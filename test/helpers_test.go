package test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/test/kit"
)

// start runs an instance with that many workers and otherwise the defaults.
func start(t *testing.T, workers int) *kit.Instance {
	t.Helper()
	return kit.Start(t, kit.Options{Config: kit.Config{Workers: workers}})
}

// startWith runs an instance with the configuration.
func startWith(t *testing.T, c kit.Config) *kit.Instance {
	t.Helper()
	return kit.Start(t, kit.Options{Config: c})
}

// dial connects a client that lives until the test ends.
func dial(t *testing.T, o kit.ClientOptions) *kit.Client {
	t.Helper()
	c, err := kit.Dial(context.Background(), o)
	if err != nil {
		t.Fatalf("connect: %v (%s)", err, kit.Cause(err))
	}
	t.Cleanup(c.Close)
	return c
}

// whoami asks for the owner and fails the test when there is no answer.
func whoami(t *testing.T, c *kit.Client) kit.Whoami {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	w, err := c.Whoami(ctx)
	if err != nil {
		t.Fatalf("whoami: %v (%s)", err, kit.Cause(err))
	}
	return w
}

// body requests a path and returns the response's body.
func body(t *testing.T, c *kit.Client, path string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r, err := c.Get(ctx, path)
	if err != nil {
		t.Fatalf("GET %s: %v (%s)", path, err, kit.Cause(err))
	}
	if r.Status != http.StatusOK {
		t.Fatalf("GET %s: status %d", path, r.Status)
	}
	return string(r.Body)
}

// reload asks for a reload over the admin socket; it must succeed.
func reload(t *testing.T, in *kit.Instance) {
	t.Helper()
	if err := in.ReloadAPI(); err != nil {
		t.Fatalf("reload: %v", err)
	}
}

// awaitOnlyCurrent returns when no generation but the current one is left.
func awaitOnlyCurrent(t *testing.T, in *kit.Instance, within time.Duration) kit.Status {
	t.Helper()
	return in.AwaitStatus(within, "old generations gone", func(s kit.Status) error {
		for _, g := range s.Generations {
			if len(g.Workers) > 0 && g.State != "current" {
				return fmt.Errorf("generation %d is %s", g.ID, g.State)
			}
		}
		return nil
	})
}

// draining returns the draining generations that still have processes.
func draining(s kit.Status) []kit.Generation {
	var gs []kit.Generation
	for _, g := range s.In("draining") {
		if len(g.Workers) > 0 {
			gs = append(gs, g)
		}
	}
	return gs
}

// awaitLost waits for the end of a connection and returns its cause.
func awaitLost(t *testing.T, c *kit.Client, within time.Duration) string {
	t.Helper()
	select {
	case <-c.Lost():
		return kit.Cause(c.Err())
	case <-time.After(within):
		t.Fatalf("connection has not ended within %v", within)
		return ""
	}
}

// orderly says whether a cause is an end by the server with a word, not a
// reset and not silence. After a GOAWAY the client is often the quicker one.
func orderly(cause string) bool {
	return cause == "application close 0x100 by server" || cause == "application close 0x0 by server" ||
		cause == "transport close 0x0 by server" || cause == "application close 0x100 by client"
}

// containsAll says whether s holds each of the parts, whatever their case.
func containsAll(s string, parts ...string) bool {
	s = strings.ToLower(s)
	for _, p := range parts {
		if !strings.Contains(s, strings.ToLower(p)) {
			return false
		}
	}
	return true
}
