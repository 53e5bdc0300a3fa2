package gateway

import (
	"math"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/holdfast-quic/holdfast/worker"
)

// Cadence of the drain.
const (
	goodbyeTick = 50 * time.Millisecond // between two rounds of goodbyes
	stopTick    = 10 * time.Millisecond // the same once the process is to end
	closers     = 16                    // sessions closed at once
	// lastMoment is for closing when the time is already over.
	lastMoment = 300 * time.Millisecond
)

// session is one connection, as the drain sees it.
type session interface {
	// goodbye tells the client to go elsewhere with its next request. It does
	// not wait for anything and is called once.
	goodbye()
	// finished reports whether closing the connection now would take nothing
	// from the client. It is asked only after goodbye, from one goroutine;
	// told is when that was.
	finished(now, told time.Time, p patience) bool
	// close ends the connection in order, as far as its protocol knows an
	// order, and returns once the last packet is with the kernel.
	close()
}

// patience is how long a session that was told goodbye must show no sign of
// having something left before it is closed. What has been sent and
// acknowledged may still be unread at the client, and many a client throws it
// away with the connection; so the more time there is, the more is given.
type patience struct {
	quiet time.Duration // without a packet, on top of what the round-trip time asks for
	idle  time.Duration // of HTTP/1.1, between requests: one may be on its way
}

var (
	atEase = patience{quiet: 2 * time.Second, idle: 5 * time.Second}
	hasty  = patience{quiet: 50 * time.Millisecond, idle: 500 * time.Millisecond}
)

// hastyGrace is the longest grace that is too short to be patient.
const hastyGrace = 2 * time.Second

// patienceFor returns what a grace leaves room for.
func patienceFor(grace time.Duration) patience {
	if grace <= hastyGrace {
		return hasty
	}
	return patience{quiet: min(grace/3, atEase.quiet), idle: min(grace/3, atEase.idle)}
}

// drainer holds the sessions of a process and ends them when it is told to.
// add and remove are safe for concurrent use; the rest belongs to the one
// goroutine that drives it.
type drainer struct {
	now func() time.Time
	log *zap.Logger

	mu       sync.Mutex
	sessions map[session]*farewell
	stopping bool // who comes now is told at once
	patience patience
	// limits of the listeners whose sessions end before the others.
	limits map[string]worker.Limit

	// wake gets a value when a session has come that needs a look.
	wake    chan struct{}
	closing sync.WaitGroup // sessions that are being closed

	until time.Time // goodbyes are to be said by then; zero = none
	last  time.Time // round before this one
}

// farewell is how far a session's goodbye is.
type farewell struct {
	listener string
	told     time.Time // zero = not yet
	closing  bool
}

func newDrainer(log *zap.Logger) *drainer {
	return &drainer{now: time.Now, log: log, sessions: map[session]*farewell{}, patience: atEase, wake: make(chan struct{}, 1)}
}

// add registers a connection of a listener that can be told goodbye.
func (d *drainer) add(s session, listener string) {
	f := &farewell{listener: listener}
	now := d.now()
	d.mu.Lock()
	over, _ := d.past(f, now)
	leave := d.stopping || over
	if leave {
		f.told = now
	}
	d.sessions[s] = f
	_, limited := d.limits[listener]
	d.mu.Unlock()
	if leave {
		s.goodbye()
	}
	if limited {
		select {
		case d.wake <- struct{}{}:
		default:
		}
	}
}

// past reports whether the session's listener is past its goodbye, and past
// its end. The caller holds mu.
func (d *drainer) past(f *farewell, now time.Time) (goodbye, end bool) {
	limit, ok := d.limits[f.listener]
	return ok && !now.Before(limit.Goodbye), ok && !now.Before(limit.End)
}

// limit sets the limits of listeners, in place of those before.
func (d *drainer) limit(limits map[string]worker.Limit) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.limits = limits
}

// pause returns how long nothing has to be done if nothing happens, and false
// if that is for ever.
func (d *drainer) pause() (time.Duration, bool) {
	now := d.now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopping || !d.until.IsZero() {
		return goodbyeTick, true
	}
	wait, any := time.Duration(math.MaxInt64), false
	for _, f := range d.sessions {
		switch limit, limited := d.limits[f.listener]; {
		case f.closing:
		case !f.told.IsZero():
			return goodbyeTick, true
		case limited:
			wait, any = min(wait, max(limit.Goodbye.Sub(now), goodbyeTick)), true
		}
	}
	return wait, any
}

// remove forgets a connection that has ended.
func (d *drainer) remove(s session) {
	d.mu.Lock()
	delete(d.sessions, s)
	d.mu.Unlock()
}

func (d *drainer) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.sessions)
}

// spread starts the goodbyes, evenly over the window from now. Sessions that
// come later are told within it, or at once when it is over.
func (d *drainer) spread(window time.Duration) {
	now := d.now()
	d.last = now
	d.until = now.Add(window)
}

// hold cancels the goodbyes that have not been said. What was said stays said.
func (d *drainer) hold() { d.until = time.Time{} }

// round says the goodbyes that are due and closes the sessions that are
// finished.
func (d *drainer) round() {
	now := d.now()
	for _, s := range d.due(now) {
		s.goodbye()
	}
	d.last = now
	d.closeAll(d.done(now))
}

// due picks the sessions whose turn it is and marks them as told.
func (d *drainer) due(now time.Time) []session {
	d.mu.Lock()
	defer d.mu.Unlock()
	var leaving, waiting []session
	for s, f := range d.sessions { // map order, so nobody is always the first
		if !f.told.IsZero() {
			continue
		}
		if over, _ := d.past(f, now); over {
			leaving = append(leaving, s)
		} else {
			waiting = append(waiting, s)
		}
	}
	switch left := d.until.Sub(d.last); {
	case d.until.IsZero():
		waiting = nil
	case left > 0 && now.Before(d.until):
		share := float64(now.Sub(d.last)) / float64(left)
		waiting = waiting[:min(len(waiting), int(math.Ceil(share*float64(len(waiting)))))]
	}
	leaving = append(leaving, waiting...)
	for _, s := range leaving {
		d.sessions[s].told = now
	}
	return leaving
}

// done picks the sessions that were told and have nothing left to do, or whose
// listener is past its end, each once.
func (d *drainer) done(now time.Time) []session {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []session
	for s, f := range d.sessions {
		if f.told.IsZero() || f.closing {
			continue
		}
		patience := d.patience
		over, end := d.past(f, now)
		if limit := d.limits[f.listener]; over && !d.stopping {
			patience = patienceFor(limit.End.Sub(limit.Goodbye))
		}
		if end || s.finished(now, f.told, patience) {
			f.closing = true
			out = append(out, s)
		}
	}
	return out
}

// stop says every goodbye at once, closes each session as soon as it is
// finished, and all of them when the grace is nearly over, so that their last
// packets are out when it ends. It returns when no session is left, or when
// cancel says that the time is over.
func (d *drainer) stop(grace time.Duration, cancel <-chan struct{}) {
	start := d.now()
	deadline := start.Add(grace - min(grace/4, 500*time.Millisecond))
	d.mu.Lock()
	d.stopping, d.patience = true, patienceFor(grace)
	d.mu.Unlock()
	d.until = start

	tick := time.NewTicker(stopTick)
	defer tick.Stop()
	for {
		d.round()
		left := d.count()
		if left == 0 {
			return
		}
		if !d.now().Before(deadline) {
			d.log.Info("closing connections that are still busy", zap.Int("connections", left))
			d.closeRest(cancel)
			return
		}
		select {
		case <-tick.C:
		case <-cancel:
			d.closeRest(moment(lastMoment))
			return
		}
	}
}

// closeRest closes every session there is. It returns when all are closed, at
// the latest when limit is ready.
func (d *drainer) closeRest(limit <-chan struct{}) {
	d.mu.Lock()
	rest := make([]session, 0, len(d.sessions))
	for s := range d.sessions {
		rest = append(rest, s)
	}
	clear(d.sessions)
	d.mu.Unlock()
	d.closeAll(rest)
	closed := make(chan struct{})
	go func() {
		d.closing.Wait()
		close(closed)
	}()
	select {
	case <-closed:
	case <-limit:
	}
}

// closeAll begins to close the sessions, several at once. One that takes its
// time holds up neither the caller nor the others.
func (d *drainer) closeAll(sessions []session) {
	next := make(chan session, len(sessions))
	for _, s := range sessions {
		next <- s
	}
	close(next)
	for range min(closers, len(sessions)) {
		d.closing.Go(func() {
			for s := range next {
				s.close()
			}
		})
	}
}

// moment returns a channel that is closed after a while.
func moment(t time.Duration) <-chan struct{} {
	c := make(chan struct{})
	time.AfterFunc(t, func() { close(c) })
	return c
}
