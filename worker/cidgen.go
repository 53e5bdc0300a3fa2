package worker

import (
	"errors"
	"sync"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/holdfast-quic/holdfast/connid"
)

// leaseWait is how long the making of a connection ID waits for the supervisor
// to grant more nonces. Half a range is left when they are asked for, so that
// only a supervisor that hangs makes anybody wait.
const leaseWait = 2 * time.Second

// cidGenerator gives quic-go connection IDs with this worker's route in them.
type cidGenerator struct {
	generator *connid.Generator
	length    int

	mu      sync.Mutex
	granted chan struct{} // closed and replaced when nonces come
}

var _ quic.ConnectionIDGenerator = (*cidGenerator)(nil)

func newCIDGenerator(r *connid.Router, route connid.Route, first connid.Range, refill func()) *cidGenerator {
	return &cidGenerator{
		generator: connid.NewGenerator(r, route, first, refill),
		length:    r.Len(),
		granted:   make(chan struct{}),
	}
}

// GenerateConnectionID returns an ID that nobody has had before.
func (g *cidGenerator) GenerateConnectionID() (quic.ConnectionID, error) {
	deadline := time.Now().Add(leaseWait)
	for {
		// Taken before the attempt, so that a grant in between is seen.
		g.mu.Lock()
		granted := g.granted
		g.mu.Unlock()
		id, err := g.generator.Generate()
		if err == nil {
			var buf [maxCID]byte
			return quic.ConnectionIDFromBytes(id.AppendTo(buf[:0])), nil
		}
		left := time.Until(deadline)
		if !errors.Is(err, connid.ErrExhausted) || left <= 0 {
			return quic.ConnectionID{}, err
		}
		select {
		case <-granted:
		case <-time.After(left):
		}
	}
}

// ConnectionIDLen returns the length of all IDs.
func (g *cidGenerator) ConnectionIDLen() int { return g.length }

// add takes a grant of the supervisor.
func (g *cidGenerator) add(r connid.Range) {
	g.generator.Add(r)
	g.mu.Lock()
	close(g.granted)
	g.granted = make(chan struct{})
	g.mu.Unlock()
}
