package test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/test/kit"
)

// C090: while old and new connections live side by side no second passes with
// a loss, and what the new generation reads for the old one is forwarded.
func TestOldAndNewConnectionsSideBySide(t *testing.T) {
	in := start(t, 2)
	old := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 100, Interval: 100 * time.Millisecond})
	in.Reload()
	before := in.Status()
	p := kit.StartProber(t, in.Client(), 50*time.Millisecond)
	span := kit.Scale(5*time.Second, time.Minute)
	kit.Every(span, span, func(int) bool { return true })
	p.Stop().MustBeClean(t)
	r := old.Stop()
	r.MustBeClean(t)
	after := in.Status()
	// Each request of an old connection is a packet at least.
	forwarded := after.Counter("packets_forwarded") - before.Counter("packets_forwarded")
	if forwarded < uint64(r.Requests)*8/10 {
		t.Errorf("%d packets forwarded for %d requests", forwarded, r.Requests)
	}
	for _, reason := range []string{"queue_full", "no_lane", "dead_target", "loop"} {
		if n := after.Counter("packets_dropped", reason); n > 0 {
			t.Errorf("%d packets dropped: %s", n, reason)
		}
	}
}

// C097: no packet is forwarded twice, and Initials are handled where they are
// read when that worker may accept.
func TestEveryPacketIsForwardedOnceAtMost(t *testing.T) {
	in := start(t, 2)
	var fleets []*kit.Fleet
	for range 3 {
		fleets = append(fleets, kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 20, Interval: 100 * time.Millisecond}))
		in.Reload()
	}
	before := in.Status()
	n := kit.Scale(1000, 1000)
	raw, err := kit.OpenRaw(in.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	for i := range n {
		raw.Send(kit.ShortPacket(kit.RandomID(20), 60))
		raw.Send(kit.LongPacket(kit.Version1, 0, kit.RandomID(8), kit.RandomID(8), 1200))
		if i%50 == 49 {
			raw.Receive(time.Millisecond) // do not overrun the socket buffer
		}
	}
	in.AwaitStatus(5*time.Second, "packets seen", func(s kit.Status) error {
		if d := s.Counter("unknown_cid") - before.Counter("unknown_cid"); d < uint64(n) {
			return fmt.Errorf("%d unknown", d)
		}
		return nil
	})
	for _, f := range fleets {
		f.Stop().MustBeClean(t)
	}
	s := in.Status()
	if loops := s.Counter("packets_dropped", "loop"); loops > 0 {
		t.Errorf("%d packets came back", loops)
	}
}

// C102: one dual-stack socket serves both families over a reload, and IPv4
// clients are shown as such.
func TestDualStackServesBothFamilies(t *testing.T) {
	in := startWith(t, kit.Config{Workers: 4, Listeners: []kit.Listener{
		{Name: "public", Address: fmt.Sprintf("[::]:%d", kit.FreePort(t, "::"))},
	}})
	v4 := kit.StartFleet(t, kit.FleetOptions{
		Client: kit.ClientOptions{Server: fmt.Sprintf("127.0.0.1:%d", in.Port())}, N: 30,
		Interval: 100 * time.Millisecond, Rebind: 700 * time.Millisecond,
	})
	v6 := kit.StartFleet(t, kit.FleetOptions{
		Client: kit.ClientOptions{Server: fmt.Sprintf("[::1]:%d", in.Port())}, N: 30,
		Interval: 100 * time.Millisecond, Rebind: 700 * time.Millisecond,
	})
	for range 3 {
		in.Reload()
		seen := v4.Report().Requests
		kit.Eventually(t, 10*time.Second, "requests after the reload", func() error {
			if n := v4.Report().Requests; n < seen+300 {
				return fmt.Errorf("%d", n-seen)
			}
			return nil
		})
	}
	for _, c := range in.Conns() {
		if strings.Contains(c.Remote, "::ffff:") {
			t.Errorf("IPv4 client is shown as %s", c.Remote)
		}
	}
	v4.Stop().MustBeClean(t)
	v6.Stop().MustBeClean(t)
	if in.Status().Counter("packets_forwarded") == 0 {
		t.Error("no packet was forwarded")
	}
}

// C103: on a host without IPv6 the service starts on IPv4 with a warning;
// when asked to be strict it refuses.
func TestStartWithoutIPv6(t *testing.T) {
	ns := kit.NewNamespace(t, "six")
	ns.Run("sh", "-c", "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; echo 1 > /proc/sys/net/ipv6/conf/lo/disable_ipv6")
	config := kit.Config{Listeners: []kit.Listener{
		{Name: "four", Address: "0.0.0.0:8443"}, {Name: "six", Address: "[::1]:8444"},
	}}
	in := kit.Start(t, kit.Options{Config: config, Namespace: ns})
	var pc net.PacketConn
	if err := ns.Do(func() (err error) {
		pc, err = net.ListenPacket("udp4", "127.0.0.1:0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	c := dial(t, kit.ClientOptions{Server: "127.0.0.1:8443", PacketConn: pc})
	whoami(t, c)
	in.Reload()
	whoami(t, c)
	if log := in.Log(); !containsAll(log, "warn", "8444") {
		t.Errorf("no warning of the address that cannot be served: %s", in.LogTail(10))
	}
	strict := kit.Prepare(t, kit.Options{Config: config.With("strict", "true"), Namespace: ns})
	strict.Launch()
	if code := strict.AwaitExit(5 * time.Second); code != 1 {
		t.Errorf("strict start: exit code %d", code)
	}
}

// C113: packets that belong to nobody are counted by their kind, not logged
// one by one, and answered within a limit.
func TestForeignPacketsAreCounted(t *testing.T) {
	in := start(t, 2)
	f := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 20, Interval: 100 * time.Millisecond})
	raw, err := kit.OpenRaw(in.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	before, lines := in.Status(), strings.Count(in.Log(), "\n")
	const n = 1000
	resets := 0
	for i := range n {
		raw.Send(kit.ShortPacket(kit.RandomID(20), 60))
		raw.Send(kit.ShortPacket(kit.RandomID(4), 5))
		raw.Send(kit.LongPacket(0x0a1a2a3a, 0, kit.RandomID(8), kit.RandomID(8), 1200))
		if i%20 == 19 {
			for {
				b, _ := raw.Receive(time.Millisecond)
				if b == nil {
					break
				}
				if kit.ParseDatagram(b).Type == kit.PacketShort {
					resets++
					if len(b) >= 60 {
						t.Errorf("a reset of %d bytes answers a packet of 60", len(b))
					}
				}
			}
		}
	}
	counters := []string{"unknown_cid", "unknown_version"}
	in.AwaitStatus(5*time.Second, "foreign packets counted", func(s kit.Status) error {
		for _, name := range counters {
			if d := s.Counter(name) - before.Counter(name); d != n {
				return fmt.Errorf("%s rose by %d", name, d)
			}
		}
		if d := s.Counter("packets_dropped", "malformed") - before.Counter("packets_dropped", "malformed"); d != n {
			return fmt.Errorf("malformed rose by %d", d)
		}
		return nil
	})
	if more := strings.Count(in.Log(), "\n") - lines; more > 20 {
		t.Errorf("%d lines in the log", more)
	}
	t.Logf("%d resets for %d packets", resets, n)
	if resets == n {
		t.Error("resets are not limited")
	}
	f.Stop().MustBeClean(t)
}

// C114: a second instance on the same address, or in the same runtime
// directory, is refused with the first one's process named; the first one
// does not notice.
func TestSecondInstanceIsRefused(t *testing.T) {
	in := start(t, 2)
	f := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 20, Interval: 100 * time.Millisecond})
	p := kit.StartProber(t, in.Client(), 50*time.Millisecond)
	t.Run("same address", func(t *testing.T) {
		second := kit.Prepare(t, kit.Options{Config: in.Config, SharedPort: true})
		second.Launch()
		if code := second.AwaitExit(5 * time.Second); code != 1 {
			t.Errorf("exit code %d", code)
		}
		if log := second.Log(); !containsAll(log, in.Addr()) {
			t.Errorf("the reason does not name the address: %s", log)
		}
	})
	t.Run("same directory", func(t *testing.T) {
		r := in.CLI("run", "--config", in.ConfigPath, "--name", in.Name, "--state-dir", in.StateDir)
		if r.Code != 1 || !containsAll(r.Stderr, fmt.Sprint(in.PID())) {
			t.Errorf("exit code %d: %s", r.Code, r.Stderr)
		}
		if pid, err := in.PIDFile(); err != nil || pid != in.PID() {
			t.Errorf("PID file says %d, %v", pid, err)
		}
	})
	p.Stop().MustBeClean(t)
	f.Stop().MustBeClean(t)
}
