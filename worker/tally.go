package worker

import "github.com/holdfast-quic/holdfast/shm"

// tally collects what a reading goroutine counts, so that the shared counters
// are written once per batch.
type tally struct {
	n    [shm.NumCounters]uint64
	some bool
}

func (t *tally) add(c shm.Counter, n uint64) {
	t.n[c] += n
	t.some = true
}

// flush moves everything to the shared counters.
func (t *tally) flush(to *shm.Counters) {
	if !t.some {
		return
	}
	t.some = false
	for c := range t.n {
		if t.n[c] != 0 {
			to.Add(shm.Counter(c), t.n[c])
			t.n[c] = 0
		}
	}
}
