package kit

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Loss is a connection that ended before its client wanted it to.
type Loss struct {
	Client int    // number of the client in its fleet
	Cause  string // see Cause
	Owner  Whoami // who owned it, as far as it ever said
	At     time.Time
}

// Report says what a fleet of clients saw.
type Report struct {
	Clients    int
	Requests   int
	Failed     int            // requests without a right answer, those of lost connections included
	Failures   map[string]int // failed requests by cause
	Lost       []Loss
	Strangers  int // answers by a process other than the connection's first
	Reconnects int // connections opened to replace a lost or closed one
	Moves      int // changes of port or path that were made
	MoveErrors map[string]int
	Answers    map[uint32]int // answers by generation
	Bodies     map[string]int // answers by body, of paths other than whoami; few are expected
	gaps       []time.Duration
}

// Longest is the longest time that a request waited for its answer, counted
// from when it was due.
func (r Report) Longest() time.Duration {
	if len(r.gaps) == 0 {
		return 0
	}
	return slices.Max(r.gaps)
}

// Quantile is the waiting time that a share q of the requests stayed below.
func (r Report) Quantile(q float64) time.Duration {
	if len(r.gaps) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(r.gaps))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// Causes counts the lost connections by cause.
func (r Report) Causes() map[string]int {
	m := map[string]int{}
	for _, l := range r.Lost {
		m[l.Cause]++
	}
	return m
}

// String is one line for logs.
func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d clients, %d requests, %d failed, %d lost, %d strangers; longest %v, p99 %v, median %v",
		r.Clients, r.Requests, r.Failed, len(r.Lost), r.Strangers,
		r.Longest().Round(time.Microsecond), r.Quantile(.99).Round(time.Microsecond), r.Quantile(.5).Round(time.Microsecond))
	if r.Moves > 0 || len(r.MoveErrors) > 0 {
		fmt.Fprintf(&b, "; %d moves, errors %s", r.Moves, counts(r.MoveErrors))
	}
	if len(r.Lost) > 0 {
		fmt.Fprintf(&b, "; lost by %s", counts(r.Causes()))
	}
	if len(r.Failures) > 0 {
		fmt.Fprintf(&b, "; failed by %s", counts(r.Failures))
	}
	return b.String()
}

func counts(m map[string]int) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%q: %d", k, m[k]))
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// MustBeClean fails the test when anything was lost, failed or answered by a
// stranger.
func (r Report) MustBeClean(t testing.TB) {
	t.Helper()
	t.Log(r)
	if r.Requests == 0 && r.Clients > 0 {
		t.Errorf("no request was made")
	}
	if r.Failed > 0 || len(r.Lost) > 0 {
		t.Errorf("%d connections lost, %d requests failed: %v", len(r.Lost), r.Failed, r)
	}
	if r.Strangers > 0 {
		t.Errorf("%d answers came from a process that does not own the connection", r.Strangers)
	}
	if len(r.MoveErrors) > 0 {
		t.Errorf("migrations failed: %s", counts(r.MoveErrors))
	}
}

// MustBeLossless fails the test when a connection was lost; it may have made
// no request at all.
func (r Report) MustBeLossless(t testing.TB) {
	t.Helper()
	if len(r.Lost) > 0 {
		t.Errorf("%d connections lost: %v", len(r.Lost), r)
	}
}

// recorder collects a report from many goroutines.
type recorder struct {
	mu sync.Mutex
	r  Report
}

func newRecorder(clients int) *recorder {
	return &recorder{r: Report{
		Clients: clients, Failures: map[string]int{}, MoveErrors: map[string]int{},
		Answers: map[uint32]int{}, Bodies: map[string]int{},
	}}
}

func (c *recorder) update(f func(r *Report)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.r)
}

// report returns a copy that later updates do not touch.
func (c *recorder) report() Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.r
	r.Failures, r.MoveErrors = maps.Clone(r.Failures), maps.Clone(r.MoveErrors)
	r.Answers, r.Bodies = maps.Clone(r.Answers), maps.Clone(r.Bodies)
	r.Lost, r.gaps = slices.Clone(r.Lost), slices.Clone(r.gaps)
	return r
}
