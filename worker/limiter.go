package worker

import "time"

// bucket is a token bucket that counts in nanoseconds: a token is the time in
// which one comes in.
type bucket struct {
	full int64 // when the bucket will be full again
}

// take takes a token at the given time (CLOCK_MONOTONIC, nanoseconds), if there
// is one.
func (b *bucket) take(now, token, size int64) bool {
	full := max(b.full, now) + token
	if full-now > size*token {
		return false
	}
	b.full = full
	return true
}

// resetLimiter bounds how many packets of unknown connections are answered,
// per listener and worker, so that rubbish cannot be turned into a stream of
// stateless resets.
type resetLimiter struct{ bucket }

const (
	resetsPerSecond = 2000
	resetBurst      = 500
)

// allow reports whether one more is answered at the given time.
func (l *resetLimiter) allow(now int64) bool {
	return l.take(now, int64(time.Second)/resetsPerSecond, resetBurst)
}

// refusalLimiter bounds how many Initial packets are deciphered by the reader to
// see whether INVALID_TOKEN is to be answered, per listener and worker. One
// takes about 20 us, so this is a hundredth of a CPU at most.
type refusalLimiter struct{ bucket }

const (
	refusalsPerSecond = 500
	refusalBurst      = 100
)

// allow reports whether one more is looked at.
func (l *refusalLimiter) allow(now int64) bool {
	return l.take(now, int64(time.Second)/refusalsPerSecond, refusalBurst)
}
