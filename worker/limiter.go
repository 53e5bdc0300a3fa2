package worker

import "time"

// resetLimiter bounds how many packets of unknown connections are answered,
// per listener and worker, so that rubbish cannot be turned into a stream of
// stateless resets. It is a token bucket that counts in nanoseconds.
type resetLimiter struct {
	full int64 // when the bucket will be full again
}

const (
	resetsPerSecond = 2000
	resetBurst      = 500

	resetCost = int64(time.Second) / resetsPerSecond
)

// allow takes a token at the given time (CLOCK_MONOTONIC, nanoseconds).
func (l *resetLimiter) allow(now int64) bool {
	full := max(l.full, now) + resetCost
	if full-now > resetBurst*resetCost {
		return false
	}
	l.full = full
	return true
}
