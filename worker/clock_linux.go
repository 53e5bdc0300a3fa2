package worker

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// clock reads CLOCK_MONOTONIC, which all processes of a host share, at the
// price of Go's own clock: both run in step, so only their distance is kept.
type clock struct {
	base  time.Time
	nanos int64
}

func newClock() (clock, error) {
	var ts unix.Timespec
	base := time.Now()
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return clock{}, fmt.Errorf("read clock: %w", err)
	}
	return clock{base: base, nanos: ts.Nano()}, nil
}

// now returns CLOCK_MONOTONIC in nanoseconds.
func (c *clock) now() int64 { return c.nanos + int64(time.Since(c.base)) }
