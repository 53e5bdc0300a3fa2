package supervisor

import "time"

const (
	backoffFirst  = 100 * time.Millisecond
	backoffMax    = 30 * time.Second
	backoffStable = 60 * time.Second // a process that lived this long was sound
)

// backoff spaces the starts of a process that keeps ending. The zero value is
// ready to use.
type backoff struct {
	failures int
	started  time.Time // of the process that runs or ran last
}

// start notes that a process was started.
func (b *backoff) start(now time.Time) { b.started = now }

// next returns how long to wait before the next start, given that the process
// has just ended.
func (b *backoff) next(now time.Time) time.Duration {
	if !b.started.IsZero() && now.Sub(b.started) >= backoffStable {
		b.failures = 0
	}
	pause := backoffMax
	if b.failures < 20 { // far beyond the maximum, far from an overflow
		pause = min(pause, backoffFirst<<b.failures)
	}
	b.failures++
	return pause
}
