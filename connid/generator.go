package connid

import "sync"

// Range is the nonces From <= n < To. A range with From >= To is empty.
type Range struct {
	From, To uint64
}

// Len returns how many nonces r holds.
func (r Range) Len() uint64 {
	if r.From >= r.To {
		return 0
	}
	return r.To - r.From
}

// Generator makes the connection IDs of one process from the ranges of nonces
// that it is given. It is safe for concurrent use and uses no nonce twice.
type Generator struct {
	router *Router
	route  Route
	refill func()

	mu     sync.Mutex
	ranges []Range // in the order of use; none is empty
	left   uint64  // nonces in ranges
	askAt  uint64  // ask for more once left is no more than this
	asked  bool    // refill was called and Add has not followed
	seen   uint64  // end of the highest range ever added
}

// NewGenerator returns a generator of connection IDs that name route. It has
// first to begin with, which may be empty. refill is called, on the goroutine
// that generates, each time half of what the generator got is used; it must
// not block, and Add answers it. It may be nil.
func NewGenerator(r *Router, route Route, first Range, refill func()) *Generator {
	g := &Generator{router: r, route: route, refill: refill}
	g.Add(first)
	return g
}

// Add gives the generator another range of the same ledger, and lets it call
// refill again. An empty range says that a request for more came to nothing.
//
// The ranges of a ledger only go up. Nonces that are not above all that was
// added before are left out, so a range that arrives twice does no harm.
func (g *Generator) Add(r Range) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r.From = max(r.From, g.seen)
	if r.Len() > 0 {
		g.ranges = append(g.ranges, r)
		g.left += r.Len()
		g.seen = r.To
	}
	g.askAt = g.left / 2
	g.asked = false
}

// Left returns how many connection IDs can be made before the next Add.
func (g *Generator) Left() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.left
}

// Generate returns a connection ID that was never returned before, or
// [ErrExhausted] until Add brings more nonces.
func (g *Generator) Generate() (ID, error) {
	nonce, ok, ask := g.next()
	if ask {
		g.refill()
	}
	if !ok {
		return ID{}, ErrExhausted
	}
	return g.router.ID(g.route, nonce)
}

// next takes a nonce and says whether refill is to be called.
func (g *Generator) next() (nonce uint64, ok, ask bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.ranges) > 0 {
		r := &g.ranges[0]
		nonce, ok = r.From, true
		r.From++
		g.left--
		if r.Len() == 0 {
			g.ranges = g.ranges[1:]
		}
	}
	if g.refill != nil && !g.asked && g.left <= g.askAt {
		g.asked, ask = true, true
	}
	return nonce, ok, ask
}
