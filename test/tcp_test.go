package test

import (
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/test/kit"
)

// C111: no TCP connection is refused, reset or left waiting over reloads,
// with the number of workers changing.
func TestReloadRefusesNoTCPConnection(t *testing.T) {
	in := start(t, 2)
	h1 := kit.StartTCPProber(t, in.Client(), "http/1.1", 10*time.Millisecond)
	h2 := kit.StartTCPProber(t, in.Client(), "h2", 20*time.Millisecond)
	mixed := []int{1, 3, 2, 4}
	for i := range kit.Scale(10, 50) {
		in.WriteConfig(in.Config.WithBody(fmt.Sprint("v", i)).WithWorkers(mixed[i%len(mixed)]))
		reload(t, in)
	}
	h1.Stop().MustBeClean(t)
	h2.Stop().MustBeClean(t)
}

// Established TCP connections stay with their process over reloads.
func TestReloadKeepsTCPConnections(t *testing.T) {
	in := start(t, 2)
	var fleets []*kit.Fleet
	for _, protocol := range []string{"http/1.1", "h2"} {
		fleets = append(fleets, kit.StartFleet(t, kit.FleetOptions{
			Client: in.Client(), N: 20, TCP: protocol, Interval: 50 * time.Millisecond,
		}))
	}
	kit.Every(500*time.Millisecond, 3*time.Second, func(int) bool { reload(t, in); return true })
	for _, f := range fleets {
		f.Stop().MustBeClean(t)
	}
}

// A draining generation that says goodbye loses no request of clients that
// listen.
func TestGoodbyeLosesNoRequest(t *testing.T) {
	in := startWith(t, kit.Config{}.With("drain", "{mode: goaway, goaway_window: 500ms, timeout: 5s, stop_timeout: 2s}"))
	h1 := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 20, TCP: "http/1.1", Interval: 50 * time.Millisecond, Reconnect: true})
	h2 := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 20, TCP: "h2", Interval: 50 * time.Millisecond, Reconnect: true})
	in.Reload()
	awaitOnlyCurrent(t, in, 10*time.Second)
	for _, f := range []*kit.Fleet{h1, h2} {
		r := f.Stop()
		t.Log(r)
		if r.Failed > 0 {
			t.Errorf("%d requests failed", r.Failed)
		}
		if len(r.Lost) == 0 {
			t.Error("no client was asked to leave")
		}
		for _, l := range r.Lost {
			if l.Cause == kit.CauseTCPReset {
				t.Error("a connection was reset")
			}
		}
	}
}
