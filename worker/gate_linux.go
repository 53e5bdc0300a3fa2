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

	mu     sync.Mutex
	used   bool // a goroutine watches
	closed bool
}

func newGate() (*gate, error) {
	w, err := newWaiter()
	if err != nil {
		return nil, err
	}
	g := &gate{waiter: w}
	first := newPlan(nil)
	first.take()
	g.wanted.Store(first)
	return g, nil
}

// set makes sockets the ones to watch and returns a channel that is closed
// once that is so. With no goroutine that watches it is so at once.
func (g *gate) set(sockets []*socket) <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := newPlan(sockets)
	if old := g.wanted.Load(); !old.isTaken() {
		p.older = old
	}
	g.wanted.Store(p)
	if g.closed || !g.used {
		p.take()
	} else {
		g.waiter.nudge()
	}
	return p.taken
}

// begin says that a goroutine watches from now on.
func (g *gate) begin() {
	g.mu.Lock()
	g.used = true
	g.mu.Unlock()
}

// end says that the goroutine watches no more, so that nobody waits for it.
func (g *gate) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.used = false
	if p := g.wanted.Load(); !p.isTaken() {
		p.take()
	}
}

// changed reports whether current is no longer the wanted plan.
func (g *gate) changed(current *plan) bool { return g.wanted.Load() != current }

// adopt puts the wanted plan in force in place of current and returns the one
// that is in force now. The watching goroutine calls it between two looks at
// its sources. Sockets that cannot be watched are told in faults.
func (g *gate) adopt(current *plan) (now *plan, faults []error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return current, nil
	}
	p := g.wanted.Load()
	for _, s := range current.sockets {
		if err := g.waiter.remove(s.fd); err != nil {
			faults = append(faults, err)
		}
	}
	for _, s := range p.sockets {
		if err := g.waiter.add(s.fd); err != nil {
			faults = append(faults, err)
		}
	}
	if !p.isTaken() {
		p.take()
	}
	return p, faults
}

// close ends the watching. The sockets stay open.
func (g *gate) close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return net.ErrClosed
	}
	g.closed = true
	if p := g.wanted.Load(); !p.isTaken() {
		p.take()
	}
	return g.waiter.close()
}
