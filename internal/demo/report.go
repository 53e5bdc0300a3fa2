package demo

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"
)

// maxReasons is how many different reasons of failures a report holds.
const maxReasons = 8

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

	LongestGap float64 `json:"longest_gap_seconds"` // that any client waited for data

	PacketsReceived  uint64 `json:"packets_received"`
	PacketsForwarded uint64 `json:"packets_forwarded"`
	CheckFaults      int    `json:"check_faults"` // of the shared segment

	Reasons []string `json:"reasons,omitempty"` // of failures
}

// judge sets OK.
func (r *Report) judge() {
	r.OK = r.ConnectionsLost == 0 && r.ReloadsFailed == 0 && r.RequestsFailed == 0 && r.TransferFailed == 0 &&
		r.HandshakesFailed == 0 && r.MovesFailed == 0 && r.CheckFaults == 0 && len(r.Reasons) == 0
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
	row("longest wait of any client", true, "%.0f ms", r.LongestGap*1000)
	row("packets", true, "%d received, %d forwarded to their owner", r.PacketsReceived, r.PacketsForwarded)
	row("shared segment", r.CheckFaults == 0, "%d faults", r.CheckFaults)
	if err := t.Flush(); err != nil {
		return err
	}
	verdict := "\nNothing was lost.\n"
	if !r.OK {
		verdict = "\nSomething was lost:\n  " + strings.Join(r.Reasons, "\n  ") + "\n"
	}
	_, err := io.WriteString(w, verdict)
	return err
}

// tally counts while the demonstration runs. Safe for concurrent use.
type tally struct {
	requests, requestsFailed     atomic.Uint64
	handshakes, handshakesFailed atomic.Uint64
	transferBytes                atomic.Uint64
	portsSwapped, pathsSwitched  atomic.Uint64
	movesFailed                  atomic.Uint64
	longestGap                   atomic.Int64 // nanoseconds

	mu          sync.Mutex
	generations map[uint32]bool
	reasons     []string
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

// blame keeps the first few reasons of failures.
func (t *tally) blame(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.reasons) < maxReasons {
		t.reasons = append(t.reasons, fmt.Sprintf(format, args...))
	}
}

// fill copies the counts into a report.
func (t *tally) fill(r *Report) {
	r.Requests, r.RequestsFailed = t.requests.Load(), t.requestsFailed.Load()
	r.Handshakes, r.HandshakesFailed = t.handshakes.Load(), t.handshakesFailed.Load()
	r.TransferBytes = t.transferBytes.Load()
	r.PortsSwapped, r.PathsSwitched, r.MovesFailed = t.portsSwapped.Load(), t.pathsSwitched.Load(), t.movesFailed.Load()
	r.LongestGap = time.Duration(t.longestGap.Load()).Seconds()
	t.mu.Lock()
	defer t.mu.Unlock()
	r.Generations = len(t.generations)
	r.Reasons = append(r.Reasons, t.reasons...)
}
