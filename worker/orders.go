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

// Draining is closed while the worker's generation is not current. The worker
// keeps its connections and gets no new ones. A generation may become current
// again: then Draining returns another channel, and the one before stays closed.
func (w *Worker) Draining() <-chan struct{} { return w.orders.channels().draining }

// Serving is closed while the worker's generation is, or is about to become,
// current: the opposite of Draining. After a drain was taken back a program
// treats its connections as before; a client that was told to leave stays told.
func (w *Worker) Serving() <-chan struct{} { return w.orders.channels().serving }

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
	began    chan struct{} // gets a value when a drain begins
	drains   chan DrainOrder
	idle     chan struct{}
	stopping chan struct{}
	since    atomic.Int64 // when draining began (CLOCK_MONOTONIC, nanoseconds)
	lingers  atomic.Int64 // until when the worker is not idle, likewise
	deadline atomic.Pointer[time.Time]
	hurry    chan struct{} // the deadline has become an earlier one

	mu      sync.Mutex
	state   phases
	drained bool
	stopped bool
	rested  bool
}

// phases is a pair of channels of which one is closed. A drain, and its end, closes
// the open one and replaces the other.
type phases struct {
	draining, serving chan struct{}
}

func (o *orders) init() {
	o.state = phases{draining: make(chan struct{}), serving: make(chan struct{})}
	close(o.state.serving)
	o.began = make(chan struct{}, 1)
	o.drains = make(chan DrainOrder, 1)
	o.idle = make(chan struct{})
	o.stopping = make(chan struct{})
	o.hurry = make(chan struct{}, 1)
}

func (o *orders) channels() phases {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.state
}

func (o *orders) isDraining() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.drained
}

func (o *orders) isStopping() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.stopped
}

// drain takes a drain order at a time; linger is how long from then on the
// worker is to stay without a connection.
func (o *orders) drain(d DrainOrder, now int64, linger time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lingers.Store(now + int64(linger))
	if !o.drained {
		o.drained = true
		o.since.Store(now)
		o.state.serving = make(chan struct{})
		close(o.state.draining)
	}
	// Also for a further order, which may be shorter of patience.
	select {
	case o.began <- struct{}{}:
	default:
	}
	select {
	case <-o.drains: // not fetched yet, and no longer what is wanted
	default:
	}
	o.drains <- d
}

// undrain takes the drain back, and reports whether there was one. It comes too
// late for a worker that stops or has called itself idle: that one ends.
func (o *orders) undrain() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.drained || o.stopped || o.rested {
		return false
	}
	o.drained = false
	select {
	case <-o.drains:
	default:
	}
	o.state.draining = make(chan struct{})
	close(o.state.serving)
	return true
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
	if o.drained && !o.rested {
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
