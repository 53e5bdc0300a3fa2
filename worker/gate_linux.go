package worker

import (
	"net"
	"sync"
	"sync/atomic"
)

// gate decides which sockets of a listener a goroutine watches, and lets the
// lifeline change that while the goroutine waits.
type gate struct {
	waiter *waiter
	wanted atomic.Pointer[plan] // stored under mu
	warn   func(error)

	mu      sync.Mutex
	watched *plan // what the waiter watches
	used    bool  // a goroutine waits, or is about to
	closed  bool
}

func newGate(warn func(error)) (*gate, error) {
	w, err := newWaiter()
	if err != nil {
		return nil, err
	}
	g := &gate{waiter: w, warn: warn}
	g.watched = newPlan(nil)
	g.watched.take()
	g.wanted.Store(g.watched)
	return g, nil
}

// set makes sockets the ones to watch and returns a channel that is closed
// once that is so: when the goroutine that waits has seen it, or at once if
// there is none.
func (g *gate) set(sockets []*socket) <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := newPlan(sockets)
	if old := g.wanted.Load(); !old.isTaken() {
		p.older = old
	}
	g.wanted.Store(p)
	switch {
	case !g.used:
		g.apply()
	case !g.closed:
		g.waiter.nudge()
	}
	// After close the goroutine may still be in a look at its sources; end
	// applies what is wanted once it is through.
	return p.taken
}

// begin says that a goroutine waits from now on.
func (g *gate) begin() {
	g.mu.Lock()
	g.used = true
	g.mu.Unlock()
}

// end says that the goroutine waits no more, so that nobody waits for it.
func (g *gate) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.used = false
	g.apply()
}

// changed reports whether current is no longer the wanted plan.
func (g *gate) changed(current *plan) bool { return g.wanted.Load() != current }

// adopt puts the wanted plan in force and returns it. The waiting goroutine
// calls it between two looks at its sources.
func (g *gate) adopt() *plan {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.apply()
}

// apply makes the waiter watch what is wanted. A socket must leave the waiter
// before it is closed: the kernel would go on watching it for as long as
// another process has it open. The caller holds mu.
func (g *gate) apply() *plan {
	p := g.wanted.Load()
	if p != g.watched && !g.closed {
		for _, s := range g.watched.sockets {
			if err := g.waiter.remove(s.fd); err != nil {
				g.warn(err)
			}
		}
		for _, s := range p.sockets {
			if err := g.waiter.add(s.fd); err != nil {
				g.warn(err)
			}
		}
		g.watched = p
	}
	if !p.isTaken() {
		p.take()
	}
	return p
}

// close ends the watching. The sockets stay open.
func (g *gate) close() error {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return net.ErrClosed
	}
	g.closed = true
	if !g.used {
		g.apply()
	}
	g.mu.Unlock()
	// Outside the lock: it waits for the goroutine that is in a look at its
	// sources, which may want the lock for a new plan. Since closed is set,
	// nobody else uses the waiter any more.
	return g.waiter.close()
}
