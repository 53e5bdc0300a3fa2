package supervisor

import (
	"fmt"
	"math"

	"github.com/holdfast-quic/holdfast/shm"
)

// tally is what workers have counted of how well they serve.
type tally struct{ connections, handshakesFailed, requests, requestErrors uint64 }

func (t *tally) add(o tally) {
	t.connections += o.connections
	t.handshakesFailed += o.handshakesFailed
	t.requests += o.requests
	t.requestErrors += o.requestErrors
}

// since returns what has come on top of an earlier tally. Damage may have made
// a counter smaller.
func (t tally) since(o tally) tally {
	less := func(a, b uint64) uint64 { return a - min(a, b) }
	return tally{
		less(t.connections, o.connections), less(t.handshakesFailed, o.handshakesFailed),
		less(t.requests, o.requests), less(t.requestErrors, o.requestErrors),
	}
}

// slotTally reads the counters of a slot, which go on from worker to worker.
func slotTally(c *shm.Counters) tally {
	return tally{c.Get(shm.QUICAccepted), c.Get(shm.HandshakesFailed), c.Get(shm.Requests), c.Get(shm.RequestErrors)}
}

// tallyOf is what one worker has counted.
func (s *Supervisor) tallyOf(w *worker) tally { return slotTally(s.seg.Counters(w.slot)).since(w.base) }

// tally is what all workers of a generation have counted, those that have ended
// too.
func (s *Supervisor) tally(g *generation) tally {
	t := g.done
	for w := range s.workers {
		if w.gen == g {
			t.add(s.tallyOf(w))
		}
	}
	return t
}

// Health is what a generation has done since a canary got its share.
type Health struct {
	Connections      uint64 `json:"connections"` // QUIC
	HandshakesFailed uint64 `json:"handshakes_failed"`
	Requests         uint64 `json:"requests"` // as the program counts them
	RequestErrors    uint64 `json:"request_errors"`
	Crashes          uint64 `json:"crashes"`
	ProbesFailed     uint64 `json:"probes_failed"`
}

func (t tally) health() Health {
	return Health{
		Connections: t.connections, HandshakesFailed: t.handshakesFailed,
		Requests: t.requests, RequestErrors: t.requestErrors,
	}
}

func (h Health) String() string {
	return fmt.Sprintf("%d connections, %d handshakes failed, %d of %d requests failed, %s",
		h.Connections, h.HandshakesFailed, h.RequestErrors, h.Requests, crashes(h.Crashes))
}

func crashes(n uint64) string {
	if n == 1 {
		return "1 crash"
	}
	return fmt.Sprintf("%d crashes", n)
}

const (
	// leastFailures is how many of something have to have failed before they
	// are held against a canary.
	leastFailures = 3
	// leastExcess is by how much a larger part of something has to have
	// failed, and leastSigmas how unlikely that has to be by chance, in
	// standard deviations.
	leastExcess = 0.02
	leastSigmas = 3
)

// clearlyWorse reports whether the part of all that failed is larger in the
// canary than in the other by more than chance explains: the usual test of two
// proportions.
func clearlyWorse(failed, all, otherFailed, otherAll uint64) bool {
	all, otherAll = max(all, failed), max(otherAll, otherFailed)
	if failed < leastFailures {
		return false
	}
	rate, otherRate := float64(failed)/float64(all), 0.0
	if otherAll > 0 {
		otherRate = float64(otherFailed) / float64(otherAll)
	}
	if rate-otherRate < leastExcess {
		return false
	}
	if otherAll == 0 {
		return true // nothing to hold it against; failures of this number speak for themselves
	}
	both := float64(failed+otherFailed) / float64(all+otherAll)
	sigma := math.Sqrt(both * (1 - both) * (1/float64(all) + 1/float64(otherAll)))
	return sigma == 0 && rate > otherRate || rate-otherRate >= leastSigmas*sigma
}

// worse says what is clearly worse about a canary than about the generation
// beside it, or nothing.
func (h Health) worse(other Health) string {
	switch {
	case clearlyWorse(h.HandshakesFailed, h.Connections, other.HandshakesFailed, other.Connections):
		return fmt.Sprintf("%d of %d handshakes failed, of the current generation %d of %d",
			h.HandshakesFailed, h.Connections, other.HandshakesFailed, other.Connections)
	case clearlyWorse(h.RequestErrors, h.Requests, other.RequestErrors, other.Requests):
		return fmt.Sprintf("%d of %d requests failed, of the current generation %d of %d",
			h.RequestErrors, h.Requests, other.RequestErrors, other.Requests)
	}
	return ""
}
