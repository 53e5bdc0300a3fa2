package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"
)

const (
	watchers      = 100                    // connections that are looked at
	watchInterval = 100 * time.Millisecond // between the requests of each
	reloadRounds  = 5                      // stretches without and with reloads, in alternation
	reloadStretch = 5 * time.Second
	reloadEach    = time.Second
)

// waits are how long clients waited for an answer in one stretch.
type waits struct {
	longest, p99 time.Duration
	failed       int
}

// watch makes a request each interval on every connection and returns how
// long the answers took.
func watch(clients []*client, address string, length time.Duration) waits {
	var (
		wg  sync.WaitGroup
		mu  sync.Mutex
		all []time.Duration
		w   waits
	)
	end := time.Now().Add(length)
	for i, c := range clients {
		wg.Go(func() {
			// Spread over the interval, so that they do not come as one burst.
			time.Sleep(watchInterval * time.Duration(i) / watchers)
			for time.Now().Before(end) {
				began := time.Now()
				_, err := c.do(context.Background(), http.MethodGet, "https://"+address+"/", nil, 0)
				took := time.Since(began)
				mu.Lock()
				if err != nil {
					w.failed++
				}
				all = append(all, took)
				mu.Unlock()
				time.Sleep(watchInterval - took)
			}
		})
	}
	wg.Wait()
	slices.Sort(all)
	w.longest, w.p99 = all[len(all)-1], all[len(all)*99/100]
	return w
}

// measureReloads measures how long a reload takes from the command to the
// generation being current, and what the clients of the first generation
// notice of reloads.
func measureReloads(binary, dir, cert, key, page string) error {
	s, err := startHoldfast("reloads", binary, dir, cert, key, 2)
	if err != nil {
		return err
	}
	defer s.stop()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var clients []*client
	for range watchers {
		c, err := dial(ctx, s.address)
		if err != nil {
			return err
		}
		defer c.close()
		clients = append(clients, c)
	}
	var (
		longest, p99, reloads []float64
		failed                int
		failure               error
	)
	for round := range reloadRounds {
		fmt.Fprintf(os.Stderr, "reloads, round %d of %d\n", round+1, reloadRounds)
		calm := watch(clients, s.address, reloadStretch)
		var wg sync.WaitGroup
		wg.Go(func() {
			for range int(reloadStretch/reloadEach) - 1 {
				began := time.Now()
				if _, err := s.run("reload"); err != nil {
					failure = err
					return
				}
				took := time.Since(began)
				reloads = append(reloads, took.Seconds()*1000)
				time.Sleep(reloadEach - took)
			}
		})
		busy := watch(clients, s.address, reloadStretch)
		wg.Wait()
		if failure != nil {
			return failure
		}
		failed += calm.failed + busy.failed
		longest = append(longest, float64(busy.longest)/float64(calm.longest))
		p99 = append(p99, float64(busy.p99)/float64(calm.p99))
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, "%d connections of the first generation, a request each %v on each; %d reloads, one each %v.\n\n",
		watchers, watchInterval, len(reloads), reloadEach)
	fmt.Fprintln(&out, "| | measured | budget |")
	fmt.Fprintln(&out, "|---|---|---|")
	fmt.Fprintf(&out, "| `holdfast reload`, two workers: command to current, median | %.0f ms | ≤ 200 ms |\n", median(reloads))
	fmt.Fprintf(&out, "| longest wait of any client, with reloads / without, median | %.2f | ≤ 1.5 |\n", median(longest))
	fmt.Fprintf(&out, "| p99 of the waits, with reloads / without, median | %.2f | ≤ 1.5 |\n", median(p99))
	fmt.Fprintf(&out, "| failed requests | %d | 0 |\n", failed)
	os.Stdout.Write(out.Bytes())
	if page == "" {
		return nil
	}
	return insert(page, "reloads", out.String())
}
