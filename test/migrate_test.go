package test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/test/kit"
)

// The storm of reload_test.go, with every client behind a NAT that gives it
// another port each second.
func TestReloadWithRebindingClientsLosesNothing(t *testing.T) {
	storm{
		n: kit.Scale(200, 1000), workers: always(2), total: kit.Scale(8*time.Second, 300*time.Second),
		fleet: kit.FleetOptions{Rebind: time.Second},
	}.run(t)
}

// The storm of reload_test.go, with every client moving to a spare connection
// ID each second.
func TestReloadWithMigratingClientsLosesNothing(t *testing.T) {
	storm{
		n: kit.Scale(100, 500), workers: always(2), total: kit.Scale(8*time.Second, 300*time.Second),
		fleet: kit.FleetOptions{Migrate: time.Second},
	}.run(t)
}

// A spare connection ID that was issued long ago and never used finds its
// owner, generations later.
func TestLateUseOfASpareConnectionID(t *testing.T) {
	kit.SkipMigrationUnderRace(t)
	in := start(t, 2)
	o := in.Client()
	o.Rebindable, o.IdleTimeout, o.KeepAlive = true, 10*time.Minute, 5*time.Second
	var clients []*kit.Client
	owners := map[*kit.Client]kit.Whoami{}
	for range 20 {
		c := dial(t, o)
		owners[c] = whoami(t, c)
		clients = append(clients, c)
	}
	kit.Every(kit.Scale(time.Second, 30*time.Second), kit.Scale(4*time.Second, 4*time.Minute), func(int) bool {
		reload(t, in)
		return true
	})
	for i, c := range clients {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		if err := c.Migrate(ctx); err != nil {
			t.Errorf("client %d: %v", i, err)
		}
		cancel()
		if now := whoami(t, c); now.Incarnation != owners[c].Incarnation {
			t.Errorf("client %d: owner %+v became %+v", i, owners[c], now)
		}
	}
}

// C096: clients that change their connection ID all the time, over reloads.
func TestConnectionIDChurnLosesNothing(t *testing.T) {
	in := start(t, 2)
	idle := in.Status().Table.Used
	f := kit.StartFleet(t, kit.FleetOptions{
		Client: in.Client(), N: kit.Scale(15, 50), Interval: 100 * time.Millisecond, Migrate: 100 * time.Millisecond,
	})
	span := kit.Scale(6*time.Second, time.Minute)
	kit.Every(span/4, span, func(int) bool { reload(t, in); return true })
	f.Stop().MustBeClean(t)
	awaitOnlyCurrent(t, in, 10*time.Second)
	in.AwaitStatus(10*time.Second, "table as empty as before", func(s kit.Status) error {
		if s.Table.Used > idle {
			return fmt.Errorf("%d entries, %d before", s.Table.Used, idle)
		}
		return nil
	})
}

// C099: a NAT gives a client a new port or address in mid-download, before
// and after its connection belongs to an old generation.
func TestDownloadSurvivesANewAddress(t *testing.T) {
	in := startWith(t, kit.Config{Listeners: []kit.Listener{
		{Name: "public", Address: fmt.Sprintf("0.0.0.0:%d", kit.FreePort(t, "0.0.0.0"))},
	}})
	const size = 4 << 20
	sum := in.WriteFile("big", size)
	o := kit.ClientOptions{Server: fmt.Sprintf("127.0.0.1:%d", in.Port()), Rebindable: true, StreamWindow: 256 << 10}
	c := dial(t, o)
	d := kit.StartDownload(t, c, "/files/big", 1<<20)
	step := func(share int64, what string, move func() error) {
		d.AwaitBytes(t, size*share/100, 10*time.Second)
		if err := move(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	step(10, "port", c.Rebind)
	step(30, "reload", in.ReloadAPI)
	step(40, "port after the reload", c.Rebind)
	step(55, "address after the reload", func() error { return c.RebindTo("127.0.0.3") })
	step(70, "port and address", func() error { return c.RebindTo("127.0.0.4") })
	d.MustBe(t, sum, 20*time.Second)
	// A paced reader tells the server of its new address with its next
	// acknowledgement; then the path is validated.
	if g := d.Gap(); g > time.Second {
		t.Errorf("download stood still for %v", g)
	}
}

// C101: on a wildcard listener the answer leaves from the address that was
// asked, also when the packet went through another process.
func TestRepliesKeepTheLocalAddress(t *testing.T) {
	in := startWith(t, kit.Config{Workers: 4, Listeners: []kit.Listener{
		{Name: "public", Address: fmt.Sprintf("0.0.0.0:%d", kit.FreePort(t, "0.0.0.0"))},
	}})
	// The relay's sockets are connected: the kernel gives them only what
	// comes from the address that they send to.
	var fleets []*kit.Fleet
	var relays []*kit.Relay
	for _, host := range []string{"127.0.0.1", "127.0.0.2", "127.0.0.3"} {
		r := kit.StartRelay(t, fmt.Sprintf("%s:%d", host, in.Port()), kit.RelayOptions{})
		relays = append(relays, r)
		fleets = append(fleets, kit.StartFleet(t, kit.FleetOptions{
			Client: kit.ClientOptions{Server: r.Addr(), KeepAlive: kit.MovingKeepAlive}, N: 10, Interval: 100 * time.Millisecond,
		}))
	}
	in.Reload()
	kit.Every(time.Second, 3*time.Second, func(int) bool {
		for _, r := range relays {
			if err := r.Rebind(); err != nil {
				t.Error(err)
			}
		}
		return true
	})
	if n := in.Status().Counter("packets_forwarded"); n == 0 {
		t.Error("no packet was forwarded")
	}
	for _, f := range fleets {
		f.Stop().MustBeClean(t)
	}
}

// C090: with more workers than a queue was to have lanes, a client that changes
// its address still finds a way to its worker from wherever it comes in.
func TestReloadWithRebindingClientsAndManyWorkers(t *testing.T) {
	in := startWith(t, kit.Config{Workers: 6}.With("queue", "{lanes: 2}"))
	f := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 30, Interval: 100 * time.Millisecond, Rebind: 300 * time.Millisecond})
	reload(t, in)
	kit.Every(time.Second, 3*time.Second, func(int) bool { return true })
	f.Stop().MustBeClean(t)
	if n := in.Status().Counter("packets_dropped", "no_lane"); n > 0 {
		t.Errorf("%d packets found no lane", n)
	}
}
