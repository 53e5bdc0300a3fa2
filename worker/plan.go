package worker

// plan is which sockets a listener reads. It is immutable but for the link to
// its predecessor; the reading goroutine takes a new one over between two
// looks at its sources, and only then is the change in force.
type plan struct {
	sockets []*socket
	taken   chan struct{} // closed by the reader once the plan, or a later one, is in force
	older   *plan         // replaced before the reader took it
}

func newPlan(sockets []*socket) *plan {
	return &plan{sockets: sockets, taken: make(chan struct{})}
}

// take marks p and all that it replaced unread as in force. The caller holds the
// conn's lock.
func (p *plan) take() {
	for p != nil {
		next := p.older
		p.older = nil
		close(p.taken)
		p = next
	}
}

func (p *plan) isTaken() bool {
	select {
	case <-p.taken:
		return true
	default:
		return false
	}
}
