package test

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/test/kit"
	"github.com/quic-go/quic-go"
)

// returning is a client's memory of a server: tickets and address tokens.
func returning(in *kit.Instance) kit.ClientOptions {
	o := in.Client()
	o.Early, o.Sessions, o.Tokens = true, tls.NewLRUClientSessionCache(100), quic.NewLRUTokenStore(10, 10)
	return o
}

// visit connects with what the client remembers, makes one early request and
// says whether the session was resumed and 0-RTT was accepted. Tickets and
// tokens for the next visit are in the options when it returns.
func visit(t *testing.T, o kit.ClientOptions) (resumed, early bool, who kit.Whoami) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), kit.DialTimeout)
	defer cancel()
	begin := time.Now()
	c, err := kit.Dial(ctx, o)
	if err != nil {
		t.Fatalf("connect: %v (%s)", err, kit.Cause(err))
	}
	defer c.Close()
	if _, err := c.GetEarly(ctx, kit.WhoamiPath); err != nil {
		t.Fatalf("first request: %v (%s)", err, kit.Cause(err))
	}
	if took := time.Since(begin); took > time.Second {
		t.Errorf("connection and first request took %v", took)
	}
	who = whoami(t, c) // by now the server's tickets and tokens have come
	s := c.Conn().ConnectionState()
	return s.TLS.DidResume, s.Used0RTT, who
}

// Tickets and address tokens of one generation are good in all that follow,
// and after a restart of everything.
func TestTicketsAndTokensOutliveGenerationAndInstance(t *testing.T) {
	in := startWith(t, retry(t))
	o := returning(in)
	var retries int
	r := kit.StartRelay(t, in.Addr(), kit.RelayOptions{Filter: func(p kit.Packet) kit.Fate {
		if p.Direction == kit.ToClient && kit.ParseDatagram(p.Data).Type == kit.PacketRetry {
			retries++ // one client at a time, so one goroutine
		}
		return kit.Fate{}
	}})
	o.Server = r.Addr()
	if resumed, early, _ := visit(t, o); resumed || early {
		t.Errorf("first visit: resumed %v, early %v", resumed, early)
	}
	if retries == 0 {
		t.Error("the first visit met no Retry")
	}
	check := func(when string) {
		t.Helper()
		retries = 0
		resumed, early, who := visit(t, o)
		if !resumed || !early {
			t.Errorf("%s (generation %d): resumed %v, 0-RTT accepted %v", when, who.Generation, resumed, early)
		}
		if retries > 0 {
			t.Errorf("%s: the address token was not taken, %d Retry packets", when, retries)
		}
	}
	check("same generation")
	in.Reload()
	check("next generation")
	in.Reload()
	in.Reload()
	check("two generations later")
	in.Signal(os.Interrupt)
	in.AwaitExit(10 * time.Second)
	in.Restart()
	check("after a restart")
	in.Kill()
	in.Restart()
	check("after a crash")
}

// C109: an address token or a ticket under a key that is gone counts as none:
// the client connects all the same, without delay.
func TestTokensOfALostKeyCountAsNone(t *testing.T) {
	in := startWith(t, retry(t))
	o := returning(in)
	visit(t, o)
	in.Signal(os.Interrupt)
	in.AwaitExit(10 * time.Second)
	keys, err := filepath.Glob(filepath.Join(in.StateDir, "*"))
	if err != nil || len(keys) == 0 {
		t.Fatalf("state directory: %v, %v", keys, err)
	}
	for _, k := range keys {
		if err := os.RemoveAll(k); err != nil {
			t.Fatal(err)
		}
	}
	in.Restart()
	if resumed, early, _ := visit(t, o); resumed || early {
		t.Errorf("resumed %v, 0-RTT %v under a key that is gone", resumed, early)
	}
}

// C106: the keys lie in files that only their owner can read.
func TestKeysAreKeptInPrivateFiles(t *testing.T) {
	in := start(t, 1)
	files := 0
	err := filepath.Walk(in.StateDir, func(path string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		want := os.FileMode(0o600)
		if info.IsDir() {
			want = 0o700
		} else {
			files++
		}
		if got := info.Mode().Perm(); got != want {
			return fmt.Errorf("%s has mode %o, want %o", path, got, want)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if files == 0 {
		t.Error("no key is kept")
	}
}
