package kit

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Handshakes says what a prober saw.
type Handshakes struct {
	Attempts int
	Failed   map[string]int // by cause
	By       map[uint32]int // accepted connections by generation
	Times    []time.Duration
	Details  []string // of the failed attempts, for the log
}

// Failures is the number of attempts that failed.
func (h Handshakes) Failures() int {
	n := 0
	for _, c := range h.Failed {
		n += c
	}
	return n
}

// Longest is the longest handshake with its first answer.
func (h Handshakes) Longest() time.Duration {
	if len(h.Times) == 0 {
		return 0
	}
	return slices.Max(h.Times)
}

// MustBeClean fails the test when an attempt failed.
func (h Handshakes) MustBeClean(t testing.TB) {
	t.Helper()
	t.Logf("%d new connections, %d failed, longest %v", h.Attempts, h.Failures(), h.Longest().Round(time.Millisecond))
	if h.Attempts == 0 {
		t.Error("no new connection was tried")
	}
	if h.Failures() > 0 {
		t.Errorf("new connections failed: %s\n%s", counts(h.Failed), strings.Join(h.Details, "\n"))
	}
}

// Prober opens new connections at a steady rate, each for one request.
type Prober struct {
	dial func(ctx context.Context) (session, error)
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu     sync.Mutex
	result Handshakes
}

// StartProber opens a QUIC connection each interval until Stop or the end of
// the test. Slow ones do not hold up the next.
func StartProber(t testing.TB, o ClientOptions, interval time.Duration) *Prober {
	return startProber(t, interval, func(ctx context.Context) (session, error) {
		c, err := Dial(ctx, o)
		if err != nil {
			return nil, err
		}
		return quicSession{c}, nil
	})
}

// StartTCPProber is StartProber for TCP connections with protocol "h2" or
// "http/1.1".
func StartTCPProber(t testing.TB, o ClientOptions, protocol string, interval time.Duration) *Prober {
	return startProber(t, interval, func(ctx context.Context) (session, error) {
		return dialTCP(ctx, o, protocol)
	})
}

func startProber(t testing.TB, interval time.Duration, dial func(context.Context) (session, error)) *Prober {
	ctx, cancel := context.WithCancel(context.Background())
	p := &Prober{dial: dial, stop: cancel, result: Handshakes{Failed: map[string]int{}, By: map[uint32]int{}}}
	p.wg.Go(func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				p.wg.Go(p.attempt)
			}
		}
	})
	t.Cleanup(func() { p.Stop() })
	return p
}

// attempt is not cut short by Stop: an attempt that has begun is counted.
func (p *Prober) attempt() {
	ctx, cancel := context.WithTimeout(context.Background(), DialTimeout)
	defer cancel()
	start := time.Now()
	s, err := p.dial(ctx)
	dialed := time.Since(start)
	var who Whoami
	if err == nil {
		var r Response
		if r, err = s.get(ctx, WhoamiPath); err == nil {
			who, err = parseWhoami(r)
		}
		s.close()
	}
	took := time.Since(start)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.result.Attempts++
	if err != nil {
		p.result.Failed[Cause(err)]++
		p.result.Details = append(p.result.Details, fmt.Sprintf("begun %s, handshake returned after %v, failed after %v: %v",
			start.UTC().Format(time.RFC3339Nano), dialed, took, err))
		return
	}
	p.result.By[who.Generation]++
	p.result.Times = append(p.result.Times, took)
}

// Stop ends the prober and returns what it saw.
func (p *Prober) Stop() Handshakes {
	p.stop()
	p.wg.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.result
}

// Burst opens n connections at once, at most parallel handshakes in flight,
// and returns the clients in the order of their start. Those that failed are
// nil and counted in the Handshakes.
func Burst(t testing.TB, o ClientOptions, n, parallel int) ([]*Client, Handshakes) {
	t.Helper()
	h := Handshakes{Failed: map[string]int{}, By: map[uint32]int{}}
	clients := make([]*Client, n)
	turns := make(chan struct{}, parallel)
	var wg sync.WaitGroup
	var mu sync.Mutex
	for i := range n {
		wg.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			ctx, cancel := context.WithTimeout(context.Background(), DialTimeout)
			defer cancel()
			start := time.Now()
			c, err := Dial(ctx, o)
			var who Whoami
			if err == nil {
				who, err = c.Whoami(ctx)
			}
			took := time.Since(start)
			mu.Lock()
			defer mu.Unlock()
			h.Attempts++
			if err != nil {
				h.Failed[Cause(err)]++
				if c != nil {
					c.Close()
				}
				return
			}
			clients[i] = c
			h.By[who.Generation]++
			h.Times = append(h.Times, took)
		})
	}
	wg.Wait()
	t.Cleanup(func() {
		for _, c := range clients {
			if c != nil {
				c.Close()
			}
		}
	})
	return clients, h
}
