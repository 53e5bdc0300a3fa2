package test

import (
	"context"
	"crypto/tls"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/test/kit"
	"github.com/quic-go/quic-go"
)

// caught dials n clients whose handshakes a relay holds up by the filter that
// makeFilter returns, reloads in the middle and verifies that each is
// completed once.
func caught(t *testing.T, in *kit.Instance, n int, filter func(p kit.Packet, reloaded <-chan struct{}) kit.Fate) {
	t.Helper()
	reloaded := make(chan struct{})
	r := kit.StartRelay(t, in.Addr(), kit.RelayOptions{Seed: 1, Filter: func(p kit.Packet) kit.Fate { return filter(p, reloaded) }})
	var wg sync.WaitGroup
	clients := make([]*kit.Client, n)
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), kit.DialTimeout)
			defer cancel()
			if clients[i], errs[i] = kit.Dial(ctx, kit.ClientOptions{Server: r.Addr()}); errs[i] == nil {
				_, errs[i] = clients[i].Whoami(ctx)
			}
		})
	}
	err := in.ReloadAPI()
	close(reloaded)
	wg.Wait()
	if err != nil {
		t.Errorf("reload: %v", err)
	}
	// A copy of an Initial that comes after the handshake starts another one,
	// with every server; that one never gets as far as a protocol.
	serves := func(n int) func() error {
		return func() error {
			served := 0
			for _, c := range in.Conns() {
				if c.Protocol == "h3" {
					served++
				}
			}
			if served != n {
				return fmt.Errorf("%d connections served, want %d", served, n)
			}
			return nil
		}
	}
	if err := kit.Poll(3*time.Second, serves(n)); err != nil {
		t.Errorf("one connection a client: %v", err)
	}
	failed := 0
	for i, c := range clients {
		if errs[i] != nil {
			if failed++; failed == 1 {
				t.Errorf("handshake failed: %v (%s)", errs[i], kit.Cause(errs[i]))
			}
		}
		if c != nil {
			c.Close()
		}
	}
	if failed > 0 {
		t.Errorf("%d of %d handshakes failed", failed, n)
	}
	// The relay has to last until the goodbyes are through.
	kit.Eventually(t, 5*time.Second, "connections ended", serves(0))
}

// C098: a ClientHello in two packets, the second of which comes late, early,
// twice or after a reload, makes one connection on one worker.
func TestSplitClientHelloOverAReload(t *testing.T) {
	n := kit.Scale(20, 300)
	in := start(t, 4)
	for _, c := range []struct {
		name   string
		filter func(p kit.Packet, reloaded <-chan struct{}) kit.Fate
	}{
		{"second after the reload", func(p kit.Packet, reloaded <-chan struct{}) kit.Fate {
			if p.Direction == kit.ToServer && p.N == 1 {
				return kit.Fate{Until: reloaded}
			}
			return kit.Fate{}
		}},
		{"first after the second and the reload", func(p kit.Packet, reloaded <-chan struct{}) kit.Fate {
			if p.Direction == kit.ToServer && p.N == 0 {
				return kit.Fate{Until: reloaded}
			}
			return kit.Fate{}
		}},
		{"second 20 ms late", func(p kit.Packet, _ <-chan struct{}) kit.Fate {
			if p.Direction == kit.ToServer && p.N == 1 {
				return kit.Fate{Delay: 20 * time.Millisecond}
			}
			return kit.Fate{}
		}},
		{"all twice", func(p kit.Packet, _ <-chan struct{}) kit.Fate { return kit.Fate{Times: 2} }},
		{"first again after the reload", func(p kit.Packet, reloaded <-chan struct{}) kit.Fate {
			if p.Direction == kit.ToServer && p.N == 2 {
				return kit.Fate{Until: reloaded, Times: 2}
			}
			return kit.Fate{}
		}},
		{"answers after the reload", func(p kit.Packet, reloaded <-chan struct{}) kit.Fate {
			if p.Direction == kit.ToClient && p.N < 3 {
				return kit.Fate{Until: reloaded}
			}
			return kit.Fate{}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			caught(t, in, n, c.filter)
		})
	}
	in.AwaitStatus(15*time.Second, "no entry left over", func(s kit.Status) error {
		if s.Table.Handshaking > 0 {
			return fmt.Errorf("%d handshaking entries", s.Table.Handshaking)
		}
		return nil
	})
}

// Handshakes over a network that loses, delays, reorders and doubles packets,
// under reloads.
func TestHandshakesOverABadNetwork(t *testing.T) {
	in := start(t, 4)
	bad := kit.Impairment{Drop: .02, Duplicate: .1, Reorder: .2, Delay: 2 * time.Millisecond, Jitter: 3 * time.Millisecond}
	r := kit.StartRelay(t, in.Addr(), kit.RelayOptions{Seed: 7, ToServer: bad, ToClient: bad})
	p := kit.StartProber(t, kit.ClientOptions{Server: r.Addr()}, 30*time.Millisecond)
	span := kit.Scale(5*time.Second, time.Minute)
	kit.Every(time.Second, span, func(int) bool { reload(t, in); return true })
	p.Stop().MustBeClean(t)
}

// 0-RTT packets that overtake their Initial find the worker that the Initial
// finds, also when a reload comes between.
func TestEarlyDataBeforeItsInitial(t *testing.T) {
	for _, overtake := range []string{"by 20 ms", "by a reload"} {
		t.Run(overtake, func(t *testing.T) {
			in := start(t, 4)
			o := in.Client()
			o.Early, o.Sessions, o.Tokens = true, tls.NewLRUClientSessionCache(100), quic.NewLRUTokenStore(10, 10)
			seed := dial(t, o)
			whoami(t, seed)
			reloaded := make(chan struct{})
			var early atomic.Int32
			r := kit.StartRelay(t, in.Addr(), kit.RelayOptions{Filter: func(p kit.Packet) kit.Fate {
				if p.Direction == kit.ToClient {
					return kit.Fate{}
				}
				switch d := kit.ParseDatagram(p.Data); d.Type {
				case kit.PacketEarly:
					early.Add(1)
				case kit.PacketInitial:
					if overtake == "by a reload" {
						return kit.Fate{Until: reloaded}
					}
					return kit.Fate{Delay: 20 * time.Millisecond}
				}
				return kit.Fate{}
			}})
			o.Server = r.Addr()
			var wg sync.WaitGroup
			for range 5 {
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(context.Background(), kit.DialTimeout)
					defer cancel()
					c, err := kit.Dial(ctx, o)
					if err != nil {
						t.Errorf("connect: %v", err)
						return
					}
					defer c.Close()
					if _, err := c.GetEarly(ctx, kit.WhoamiPath); err != nil {
						t.Errorf("early request: %v (%s)", err, kit.Cause(err))
					}
				})
			}
			if overtake == "by a reload" {
				if err := in.ReloadAPI(); err != nil {
					t.Error(err)
				}
			}
			close(reloaded)
			wg.Wait()
			t.Logf("%d 0-RTT packets came first", early.Load())
		})
	}
}

// retry is a configuration whose listener validates every address.
func retry(t *testing.T) kit.Config {
	return kit.Config{Listeners: []kit.Listener{{
		Name: "public", Address: fmt.Sprintf("127.0.0.1:%d", kit.FreePort(t, "127.0.0.1")),
		QUIC: "{allow_0rtt: true, retry: always}",
	}}}
}

// C003: with Retry forced no handshake fails over reloads, and a Retry token
// of one generation is good in the next.
func TestRetryOverReloads(t *testing.T) {
	in := startWith(t, retry(t))
	p := kit.StartProber(t, in.Client(), 50*time.Millisecond)
	span := kit.Scale(5*time.Second, time.Minute)
	kit.Every(span/5, span, func(int) bool { reload(t, in); return true })
	p.Stop().MustBeClean(t)
	var retries atomic.Int32
	caught(t, in, 10, func(p kit.Packet, reloaded <-chan struct{}) kit.Fate {
		if p.Direction == kit.ToClient && kit.ParseDatagram(p.Data).Type == kit.PacketRetry {
			retries.Add(1)
			return kit.Fate{Until: reloaded}
		}
		return kit.Fate{}
	})
	if retries.Load() < 10 {
		t.Errorf("%d Retry packets seen", retries.Load())
	}
}

// C091: with more workers than CPUs, both address families and many fresh
// ports, every connection and every download succeeds.
func TestManyWorkersBothFamilies(t *testing.T) {
	port := kit.FreePort(t, "127.0.0.1")
	in := startWith(t, kit.Config{Workers: 8, Listeners: []kit.Listener{
		{Name: "v4", Address: fmt.Sprintf("127.0.0.1:%d", port)},
		{Name: "v6", Address: fmt.Sprintf("[::1]:%d", port)},
	}})
	sum := in.WriteFile("big", 1<<20)
	for _, l := range in.Config.Listeners {
		o := kit.ClientOptions{Server: l.Address}
		clients, h := kit.Burst(t, o, kit.Scale(60, 250), 8)
		h.MustBeClean(t)
		var downloads []*kit.Transfer
		for _, c := range clients[:kit.Scale(15, 40)] {
			if c != nil {
				downloads = append(downloads, kit.StartDownload(t, c, "/files/big", 0))
			}
		}
		for _, d := range downloads {
			d.MustBe(t, sum, 30*time.Second)
		}
	}
	s := in.Status()
	for _, reason := range []string{"queue_full", "no_lane", "dead_target", "loop", "malformed"} {
		if n := s.Counter("packets_dropped", reason); n > 0 {
			t.Errorf("%d packets dropped: %s", n, reason)
		}
	}
}
