package shm

import (
	"fmt"
	"math/bits"
	"time"

	"github.com/holdfast-quic/holdfast/internal/mem"
)

// Counter names a number that only grows.
type Counter int

// Counters. A packet that a worker reads from a socket adds to PacketsReceived
// and to exactly one of PacketsDelivered, PacketsAccepted, PacketsForwarded and
// the drops DropQueueFull, DropNoLane, DropDeadTarget, DropMalformed,
// DropNoListener, DropResetLimited, DropOrphan, DropInvalidToken. A packet that
// was put into a queue, PacketsForwarded or ProbePushed, ends as PacketsPulled,
// DropStaleRecord or DropDeadQueue, or still waits. A pulled one adds to exactly
// one of PulledDelivered, PulledAccepted, DropLoop.
const (
	PacketsReceived  Counter = iota // read from a socket
	PacketsDelivered                // given to a connection of this worker
	PacketsAccepted                 // started a connection in this worker
	PacketsForwarded                // put into another worker's queue
	PacketsPulled                   // taken out of the own queue
	PulledDelivered                 // subset of PacketsPulled
	PulledAccepted                  // subset of PacketsPulled
	ProbePushed                     // put into a queue by the supervisor's probe
	DropQueueFull                   // lane of the target was full
	DropNoLane                      // target has no lane left
	DropDeadTarget                  // owner died between look-up and push, or its record is damaged
	DropStaleRecord                 // record was meant for an earlier incarnation
	DropDeadQueue                   // record was in the queue of a worker that died; counted by the supervisor
	DropLoop                        // forwarded to a worker that has no use for it
	DropMalformed                   // no QUIC packet
	DropNoListener                  // whoever was to get it does not serve the listener
	DropResetLimited                // unknown connection, resets were over their rate
	DropOrphan                      // connection of a dead worker
	UnknownCID                      // packets of no known connection, whatever became of them
	UnknownVersion                  // packets of an unknown QUIC version, whatever became of them
	KernelDrops                     // lost in a socket's buffer, by the kernel's account
	Wakeups                         // times that a reader slept and was woken
	DoorbellsRung                   // wake-ups sent to other workers
	BytesReceived                   // payload of PacketsReceived
	BytesForwarded                  // payload of PacketsForwarded
	QUICAccepted                    // connections
	TCPAccepted                     // connections
	TableFull                       // connection IDs that found no entry
	SendErrors                      // datagrams, or trains of them, that the kernel would not send
	QueueDelay                      // first of QueueDelayBuckets counters of pulled packets by time in queue

	HandshakesFailed = QueueDelay + QueueDelayBuckets // QUIC connections of QUICAccepted whose handshake failed
	Requests         = HandshakesFailed + 1           // answered, by the program's own account
	RequestErrors    = Requests + 1                   // subset of Requests that the program could not answer as it should
	DropInvalidToken = RequestErrors + 1              // Initial that answers a Retry with a token that is not the Retry's

	// NumCounters is the number of counters.
	NumCounters = DropInvalidToken + 1
)

// QueueDelayBuckets is the number of histogram buckets from QueueDelay on.
// Bucket i counts delays below 2^i microseconds that bucket i-1 does not; the
// last has no upper bound.
const QueueDelayBuckets = 16

// QueueDelayCounter returns the counter of the histogram bucket for d.
func QueueDelayCounter(d time.Duration) Counter {
	us := uint64(max(d, 0) / time.Microsecond)
	return QueueDelay + Counter(min(bits.Len64(us), QueueDelayBuckets-1))
}

var counterNames = [...]string{
	"packets_received", "packets_delivered", "packets_accepted", "packets_forwarded", "packets_pulled",
	"pulled_delivered", "pulled_accepted", "probe_pushed",
	"drop_queue_full", "drop_no_lane", "drop_dead_target", "drop_stale_record", "drop_dead_queue", "drop_loop",
	"drop_malformed", "drop_no_listener", "drop_reset_limited", "drop_orphan",
	"unknown_cid", "unknown_version", "kernel_drops", "wakeups", "doorbells_rung",
	"bytes_received", "bytes_forwarded", "quic_accepted", "tcp_accepted", "table_full", "send_errors",
}

var laterCounterNames = [...]string{"handshakes_failed", "requests", "request_errors", "drop_invalid_token"}

// String returns the name under which status and metrics show the counter.
func (c Counter) String() string {
	switch {
	case c < 0 || c >= NumCounters:
		return fmt.Sprintf("counter(%d)", int(c))
	case c >= HandshakesFailed:
		return laterCounterNames[c-HandshakesFailed]
	case c == HandshakesFailed-1:
		return "queue_delay_us_inf"
	case c >= QueueDelay:
		return fmt.Sprintf("queue_delay_us_%d", 1<<(c-QueueDelay))
	}
	return counterNames[c]
}

// Counters is the row of one worker slot or of the supervisor. It is cumulative
// over all workers that the slot ever had. One process adds, from any number of
// goroutines; everybody may read.
type Counters struct{ row mem.View }

// Add adds n to counter c.
//
// Preconditions: 0 <= c < NumCounters.
func (r *Counters) Add(c Counter, n uint64) { r.row.Add64(int(c)*8, n) }

// Get returns counter c.
//
// Preconditions: 0 <= c < NumCounters.
func (r *Counters) Get(c Counter) uint64 { return r.row.Load64(int(c) * 8) }
