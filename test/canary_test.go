package test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/test/kit"
)

// canary begins a canary of the same program with a share in percent, and
// returns the generations that share.
func canary(t *testing.T, in *kit.Instance, args ...string) (current, trial uint32) {
	t.Helper()
	current = in.Current()
	if r := in.CLI(append([]string{"upgrade"}, args...)...); r.Code != 0 {
		t.Fatalf("upgrade %v: %+v", args, r)
	}
	s := in.Status()
	list := s.In("canary")
	if len(list) != 1 {
		t.Fatalf("generations %+v", s.Generations)
	}
	return current, list[0].ID
}

// generations makes n new connections, some at a time, and returns how many
// there were of each generation.
func generations(t *testing.T, n int, connect func() (uint32, error)) map[uint32]int {
	t.Helper()
	var mu sync.Mutex
	got := map[uint32]int{}
	var wg sync.WaitGroup
	turns := make(chan struct{}, 8)
	for range n {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			g, err := connect()
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Errorf("connect: %v (%s)", err, kit.Cause(err))
				return
			}
			got[g]++
		})
	}
	wg.Wait()
	return got
}

// overQUIC is a new connection over QUIC, overTCP one over TCP: each asks who
// serves it.
func overQUIC(in *kit.Instance) func() (uint32, error) {
	return func() (uint32, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		c, err := kit.Dial(ctx, in.Client())
		if err != nil {
			return 0, err
		}
		defer c.Close()
		w, err := c.Whoami(ctx)
		return w.Generation, err
	}
}

func overTCP(in *kit.Instance) func() (uint32, error) {
	return func() (uint32, error) {
		c := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
			DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: "localhost"},
		}}
		resp, err := c.Get("https://" + in.Addr() + kit.WhoamiPath)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		var w kit.Whoami
		err = json.NewDecoder(resp.Body).Decode(&w)
		return w.Generation, err
	}
}

// C050: the share of new connections that a canary gets. An account is kept,
// so that chance moves it by a few connections only, however many there are: a
// point at the full size.
func TestCanaryShares(t *testing.T) {
	in := start(t, 2)
	fleet := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 20})
	for _, percent := range []float64{1, 10, 50} {
		current, trial := canary(t, in, "--canary", fmt.Sprintf("%v%%", percent))
		for _, kind := range []struct {
			name    string
			n       int
			points  float64
			connect func() (uint32, error)
		}{
			{"QUIC", kit.Scale(400, 5000), 1, overQUIC(in)},
			{"TCP", kit.Scale(300, 5000), 3, overTCP(in)},
		} {
			got := generations(t, kind.n, kind.connect)
			share := 100 * float64(got[trial]) / float64(kind.n)
			slack := max(kind.points, 100*8/float64(kind.n))
			t.Logf("%v %% of %s: %.2f %% of %d", percent, kind.name, share, kind.n)
			if share < percent-slack || share > percent+slack || got[trial]+got[current] != kind.n {
				t.Errorf("%v %% of %s: %v", percent, kind.name, got)
			}
		}
		if r := in.CLI("rollback"); r.Code != 0 {
			t.Fatalf("rollback: %+v", r)
		}
	}
	fleet.Stop().MustBeClean(t)
}

// C050: promotion and its rollback touch no connection of either generation,
// and new ones turn back within a tenth of a second.
func TestCanaryPromoteAndRollback(t *testing.T) {
	in := startWith(t, kit.Config{Workers: 2}.With("drain", "{mode: hold, timeout: 1h}"))
	old := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 20, Interval: 100 * time.Millisecond})
	current, _ := canary(t, in, "--canary", "50%")
	both := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 40, Interval: 100 * time.Millisecond})
	tcp := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 20, Interval: 100 * time.Millisecond, TCP: "h2"})

	turnsBack(t, in, current) // the canary is rolled back
	current, trial := canary(t, in, "--canary", "50%")
	if r := in.CLI("promote"); r.Code != 0 {
		t.Fatalf("promote: %+v", r)
	}
	if got := generations(t, 20, overQUIC(in)); got[trial] != 20 {
		t.Errorf("after the promotion: %v", got)
	}
	turnsBack(t, in, current) // and so is the promotion
	if got := generations(t, 20, overTCP(in)); got[current] != 20 {
		t.Errorf("TCP after the rollback: %v", got)
	}
	in.AwaitStatus(5*time.Second, "the first generation is current", func(s kit.Status) error {
		if g, _ := s.Current(); g.ID != current || len(s.In("canary")) != 0 {
			return fmt.Errorf("generations %+v", s.Generations)
		}
		return nil
	})
	if r := in.CLI("rollback"); r.Code != 1 || !strings.Contains(r.Stderr, "none to return to") {
		t.Errorf("one more: %+v", r)
	}
	in.Reload()
	for _, f := range []*kit.Fleet{old, both, tcp} {
		f.Stop().MustBeClean(t)
	}
}

// turnsBack orders a rollback while new connections come in, and checks that
// those which begin a tenth of a second after the order are served by the
// generation.
func turnsBack(t *testing.T, in *kit.Instance, to uint32) {
	t.Helper()
	type result struct {
		begun time.Time
		gen   uint32
		err   error
	}
	results := make(chan result, 4096)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			connect := overQUIC(in)
			for {
				select {
				case <-stop:
					return
				default:
				}
				r := result{begun: time.Now()}
				r.gen, r.err = connect()
				results <- r
			}
		})
	}
	time.Sleep(300 * time.Millisecond) // connections on their way
	ordered := time.Now()
	if _, err := in.Admin(http.MethodPost, "/v1/rollback", 5*time.Second); err != nil {
		t.Errorf("rollback: %v", err)
	}
	answered := time.Since(ordered)
	time.Sleep(500 * time.Millisecond)
	close(stop)
	wg.Wait()
	close(results)
	after := 0
	for r := range results {
		switch late := r.begun.Sub(ordered); {
		case r.err != nil:
			t.Errorf("connect: %v", r.err)
		case late > 100*time.Millisecond && r.gen != to:
			t.Errorf("generation %d serves a connection that began %v after the rollback", r.gen, late)
		case late > 100*time.Millisecond:
			after++
		}
	}
	if after == 0 {
		t.Error("no connection came after the rollback")
	}
	t.Logf("answered after %v, %d connections after the rollback", answered, after)
}

// A build that crashes takes its share for less than two seconds.
func TestBadCanaryIsRolledBackByItself(t *testing.T) {
	in := start(t, 1)
	fleet := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 20, Interval: 100 * time.Millisecond})
	current := in.Current()
	in.Misbehave(kit.WorkerCrashesAfter(2*time.Second), 1)
	result := make(chan kit.Result, 1)
	go func() { result <- in.CLI("upgrade", "--canary", "10%", "--soak", "10m", "--auto") }()
	in.AwaitStatus(20*time.Second, "the crash", func(s kit.Status) error {
		if s.Counter("worker_crashes") == 0 {
			return fmt.Errorf("generations %+v", s.Generations)
		}
		return nil
	})
	crashed := time.Now()
	r := <-result
	if d := time.Since(crashed); d > 2*time.Second {
		t.Errorf("rolled back %v after the crash", d)
	}
	in.Misbehave("", 0)
	if r.Code != 1 || !strings.Contains(r.Stderr, "rolled back") {
		t.Errorf("upgrade: %+v", r)
	}
	if got := generations(t, 20, overQUIC(in)); got[current] != 20 {
		t.Errorf("after the crash: %v", got)
	}
	s := in.Status()
	if s.Counter("rollbacks") != 1 || s.LastFailure == nil || s.LastFailure.What != "upgrade" {
		t.Errorf("status %+v", s)
	}
	fleet.Stop().MustBeClean(t)
}

// A canary that does well is promoted when it has soaked.
func TestGoodCanaryIsPromotedByItself(t *testing.T) {
	in := startWith(t, kit.Config{Workers: 1}.With("upgrade", "{probation: 0}"))
	fleet := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 20, Interval: 100 * time.Millisecond})
	before := in.Current()
	r := in.CLI("upgrade", "--canary", "50%", "--soak", "2s", "--auto")
	if r.Code != 0 {
		t.Fatalf("upgrade: %+v", r)
	}
	if now := in.Current(); now != before+1 {
		t.Errorf("generation %d is current", now)
	}
	fleet.Stop().MustBeClean(t)
}

// C073: a drain that was started by accident is taken back, and a caller that
// dies leaves none without a limit: its end is that of the generation.
func TestDrainIsTakenBack(t *testing.T) {
	in := startWith(t, kit.Config{Workers: 1}.With("drain", "{mode: hold, timeout: 1h, goaway_window: 1h}"))
	fleet := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 20, Interval: 100 * time.Millisecond})
	old := in.Current()
	in.Reload()
	generation := fmt.Sprint(old)
	for _, args := range [][]string{{"drain", "--generation", generation}, {"drain", "--generation", generation, "--cancel"}} {
		if r := in.CLI(args...); r.Code != 0 {
			t.Fatalf("%v: %+v", args, r)
		}
	}
	began := time.Now()
	if _, err := overQUIC(in)(); err != nil || time.Since(began) > time.Second {
		t.Errorf("a new connection after %v: %v", time.Since(began), err)
	}
	g, ok := in.Status().Generation(old)
	if !ok || g.State != "draining" || g.Deadline == nil {
		t.Errorf("generation %+v", g)
	}
	// The first goodbyes may have been said already; a client that was told
	// leaves in order.
	if r := fleet.Stop(); r.Failed != 0 || len(r.Lost) > 5 {
		t.Error(r)
	}
}
