package demo

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"
)

// maxFailures is how many failures a report tells of; all of them are counted.
const maxFailures = 8

// Report is the verdict.
type Report struct {
	OK      bool    `json:"ok"`
	Seconds float64 `json:"seconds"`

	Connections     int `json:"connections"`
	ConnectionsLost int `json:"connections_lost"`

	Reloads       int     `json:"reloads"`
	ReloadsFailed int     `json:"reloads_failed"`
	ReloadSlowest float64 `json:"reload_slowest_seconds"`
	Generations   int     `json:"generations_seen"`

	Requests       uint64 `json:"requests"`
	RequestsFailed uint64 `json:"requests_failed"`
	TransferBytes  uint64 `json:"transfer_bytes"`
	TransferFailed int    `json:"transfers_failed"`

	Handshakes       uint64 `json:"new_handshakes"`
	HandshakesFailed uint64 `json:"new_handshakes_failed"`

	PortsSwapped  uint64 `json:"ports_swapped"`  // NAT rebinding
	PathsSwitched uint64 `json:"paths_switched"` // migration on purpose
	MovesFailed   uint64 `json:"moves_failed"`

	LongestGap float64 `json:"longest_gap_seconds"` // that any client waited for data, in vain or not

	PacketsReceived  uint64            `json:"packets_received"`
	PacketsForwarded uint64            `json:"packets_forwarded"`
	PacketsDropped   map[string]uint64 `json:"packets_dropped"` // by reason
	CheckFaults      int               `json:"check_faults"`    // of the shared segment

	Failures []Failure `json:"failures,omitempty"` // the first few
}

// Failure is one thing that went wrong.
type Failure struct {
	What   string       `json:"what"`
	Error  string       `json:"error"`
	Client *ClientState `json:"client,omitempty"` // that it happened to, if to one
}

// String is the failure in a line.
func (f Failure) String() string {
	if f.Client == nil {
		return f.What + ": " + f.Error
	}
	return fmt.Sprintf("%s: %s (%s)", f.What, f.Error, f.Client)
}

// ClientState is what is known of a client at the moment of its failure.
type ClientState struct {
	Kind       Kind    `json:"kind"`
	Waited     float64 `json:"waited_seconds"`         // in vain, until the failure
	Age        float64 `json:"connection_age_seconds"` // since its handshake began
	Generation uint32  `json:"generation"`             // that owns the connection; 0 = it never answered
	LastMove   Move    `json:"last_move,omitempty"`    // how it last changed its address
	SinceMove  float64 `json:"since_move_seconds"`     // 0 = it never did
}

// String is the state in a line.
func (s *ClientState) String() string {
	owner := "a generation that never answered"
	if s.Generation != 0 {
		owner = fmt.Sprintf("generation %d", s.Generation)
	}
	moved := "address never changed"
	if s.LastMove != "" {
		moved = fmt.Sprintf("%s %.1f s ago", s.LastMove, s.SinceMove)
	}
	return fmt.Sprintf("%s, waited %.1f s, connected %.1f s ago to %s, %s", s.Kind, s.Waited, s.Age, owner, moved)
}

// judge sets OK.
func (r *Report) judge() {
	r.OK = r.ConnectionsLost == 0 && r.ReloadsFailed == 0 && r.RequestsFailed == 0 && r.TransferFailed == 0 &&
		r.HandshakesFailed == 0 && r.MovesFailed == 0 && r.CheckFaults == 0 && len(r.Failures) == 0
}

// Print writes the verdict as a table.
func (r *Report) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(what string, good bool, format string, args ...any) {
		mark := "ok"
		if !good {
			mark = "LOST"
		}
		fmt.Fprintf(t, "  %s\t%s\t%s\n", what, fmt.Sprintf(format, args...), mark)
	}
	fmt.Fprintf(t, "\nIn %.1f s:\n\n", r.Seconds)
	row("connections held", r.ConnectionsLost == 0, "%d, %d lost", r.Connections, r.ConnectionsLost)
	row("reloads", r.ReloadsFailed == 0, "%d, %d failed, slowest %.0f ms", r.Reloads, r.ReloadsFailed, r.ReloadSlowest*1000)
	row("generations that answered", r.Generations > r.Reloads, "%d", r.Generations)
	row("requests", r.RequestsFailed == 0, "%d, %d failed", r.Requests, r.RequestsFailed)
	row("transfers", r.TransferFailed == 0, "%.1f MB, %d broken", float64(r.TransferBytes)/1e6, r.TransferFailed)
	row("new handshakes", r.HandshakesFailed == 0, "%d, %d failed", r.Handshakes, r.HandshakesFailed)
	row("clients that moved", r.MovesFailed == 0, "%d new ports (NAT), %d new paths, %d failed", r.PortsSwapped, r.PathsSwitched, r.MovesFailed)
	row("longest wait of any client", r.LongestGap < requestTimeout.Seconds(), "%.0f ms", r.LongestGap*1000)
	row("packets", true, "%d received, %d forwarded to their owner", r.PacketsReceived, r.PacketsForwarded)
	row("packets dropped", true, "%s", r.dropped())
	row("shared segment", r.CheckFaults == 0, "%d faults", r.CheckFaults)
	if err := t.Flush(); err != nil {
		return err
	}
	verdict := "\nNothing was lost.\n"
	if !r.OK {
		verdict = "\nSomething was lost:\n"
		for _, f := range r.Failures {
			verdict += "  " + f.String() + "\n"
		}
	}
	_, err := io.WriteString(w, verdict)
	return err
}

// dropped is the drop counters that are not zero.
func (r *Report) dropped() string {
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(r.PacketsDropped)) {
		if n := r.PacketsDropped[reason]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, reason))
		}
	}
	if parts == nil {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// tally counts while the demonstration runs. Safe for concurrent use.
type tally struct {
	requests, requestsFailed     atomic.Uint64
	handshakes, handshakesFailed atomic.Uint64
	transferBytes                atomic.Uint64
	transfersFailed              atomic.Int64
	portsSwapped, pathsSwitched  atomic.Uint64
	movesFailed                  atomic.Uint64
	longestGap                   atomic.Int64 // nanoseconds

	mu          sync.Mutex
	generations map[uint32]bool
	failures    []Failure
}

func newTally() *tally { return &tally{generations: map[uint32]bool{}} }

// gap notes how long a client waited for data.
func (t *tally) gap(d time.Duration) {
	for {
		old := t.longestGap.Load()
		if int64(d) <= old || t.longestGap.CompareAndSwap(old, int64(d)) {
			return
		}
	}
}

func (t *tally) saw(generation uint32) {
	t.mu.Lock()
	t.generations[generation] = true
	t.mu.Unlock()
}

// blame keeps the first few failures.
func (t *tally) blame(what string, err error) { t.note(Failure{What: what, Error: err.Error()}) }

// blameClient keeps the first few failures. The client's wait began at start.
func (t *tally) blameClient(c *client, what string, start time.Time, err error) {
	t.note(Failure{What: what, Error: err.Error(), Client: c.state(start)})
}

func (t *tally) note(f Failure) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.failures) < maxFailures {
		t.failures = append(t.failures, f)
	}
}

// fill copies the counts into a report.
func (t *tally) fill(r *Report) {
	r.Requests, r.RequestsFailed = t.requests.Load(), t.requestsFailed.Load()
	r.Handshakes, r.HandshakesFailed = t.handshakes.Load(), t.handshakesFailed.Load()
	r.TransferBytes, r.TransferFailed = t.transferBytes.Load(), int(t.transfersFailed.Load())
	r.PortsSwapped, r.PathsSwitched, r.MovesFailed = t.portsSwapped.Load(), t.pathsSwitched.Load(), t.movesFailed.Load()
	r.LongestGap = time.Duration(t.longestGap.Load()).Seconds()
	t.mu.Lock()
	defer t.mu.Unlock()
	r.Generations = len(t.generations)
	r.Failures = append(r.Failures, t.failures...)
}
