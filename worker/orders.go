package worker

import (
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// Modes of a drain.
const (
	DrainHold   = "hold"   // connections live on until their clients end them
	DrainGoAway = "goaway" // clients are asked to leave
)

// DrainOrder says how the connections of a generation that is no longer
// current are to be treated. A later order replaces an earlier one.
type DrainOrder struct {
	Mode     string        // DrainHold or DrainGoAway
	Window   time.Duration // goodbyes are spread over this long
	Deadline time.Time     // by when all is to have ended; zero: not known
	// Limits of the listeners, by name, whose connections are to end before
	// the others. The program sees to them; for what is left at Deadline the
	// supervisor stops the worker.
	Limits map[string]Limit
}

// Limit says when the connections of one listener end.
type Limit struct {
	Goodbye time.Time // clients are asked to leave, whatever the mode
	End     time.Time // what is left is closed
}

// Draining is closed when the worker's generation is no longer current. It
// keeps its connections and gets no new ones.
func (w *Worker) Draining() <-chan struct{} { return w.orders.draining }

// DrainOrders gets each DrainOrder, or of several in a row only the last.
func (w *Worker) DrainOrders() <-chan DrainOrder { return w.orders.drains }

// Idle is closed when the worker drains and has no connection left. The
// program may return then.
func (w *Worker) Idle() <-chan struct{} { return w.orders.idle }

// Stopping is closed when the worker is to end: the program says goodbye on
// all connections and returns within Grace.
func (w *Worker) Stopping() <-chan struct{} { return w.orders.stopping }

// Grace returns how much of the time for stopping is left.
func (w *Worker) Grace() time.Duration {
	if d := w.orders.deadline.Load(); d != nil {
		return max(time.Until(*d), 0)
	}
	return 0
}

// orders is what the supervisor has ordered so far.
type orders struct {
	draining chan struct{}
	drains   chan DrainOrder
	idle     chan struct{}
	stopping chan struct{}
	since    atomic.Int64 // when draining began (CLOCK_MONOTONIC, nanoseconds)
	deadline atomic.Pointer[time.Time]
	hurry    chan struct{} // the deadline has become an earlier one

	mu      sync.Mutex
	drained bool
	stopped bool
	rested  bool
}

func (o *orders) init() {
	o.draining = make(chan struct{})
	o.drains = make(chan DrainOrder, 1)
	o.idle = make(chan struct{})
	o.stopping = make(chan struct{})
	o.hurry = make(chan struct{}, 1)
}

func (o *orders) isDraining() bool {
	select {
	case <-o.draining:
		return true
	default:
		return false
	}
}

// drain takes a drain order at a time.
func (o *orders) drain(d DrainOrder, now int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.drained {
		o.drained = true
		o.since.Store(now)
		close(o.draining)
	}
	select {
	case <-o.drains: // not fetched yet, and no longer what is wanted
	default:
	}
	o.drains <- d
}

// stop takes an order to stop. A second one can only shorten the grace.
func (o *orders) stop(grace time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	deadline := time.Now().Add(grace)
	if old := o.deadline.Load(); old == nil || deadline.Before(*old) {
		o.deadline.Store(&deadline)
		select {
		case o.hurry <- struct{}{}:
		default:
		}
	}
	if !o.stopped {
		o.stopped = true
		close(o.stopping)
	}
}

func (o *orders) setIdle() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.rested {
		o.rested = true
		close(o.idle)
	}
}

// memoryPause is how long after the begin of a drain free memory goes back to
// the system: by then the last requests that came in before are mostly done.
const memoryPause = time.Second

// releaseMemory gives free memory back, unless the worker ends before.
func (o *orders) releaseMemory(ended <-chan struct{}) {
	go func() {
		select {
		case <-ended:
		case <-time.After(memoryPause):
			debug.FreeOSMemory()
		}
	}()
}
