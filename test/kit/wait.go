package kit

import (
	"os"
	"testing"
	"time"
)

// pollEvery is how often a condition is looked at again.
const pollEvery = 10 * time.Millisecond

// Eventually looks at cond until it returns nil and fails the test with its
// last error when that takes longer than within.
func Eventually(t testing.TB, within time.Duration, what string, cond func() error) {
	t.Helper()
	if err := Poll(within, cond); err != nil {
		t.Fatalf("%s: not within %v: %v", what, within, err)
	}
}

// Poll looks at cond until it returns nil, or returns its last error after
// within. The condition is always looked at once more at the end.
func Poll(within time.Duration, cond func() error) error {
	deadline := time.Now().Add(within)
	for {
		late := time.Now().After(deadline)
		err := cond()
		if err == nil || late {
			return err
		}
		time.Sleep(pollEvery)
	}
}

// Soak says whether the scenarios run at their full length.
func Soak() bool { return os.Getenv("HOLDFAST_SOAK") == "1" }

// Scale chooses between the everyday size of a scenario and the full one.
func Scale[T any](everyday, soak T) T {
	if Soak() {
		return soak
	}
	return everyday
}

// Every calls f at each interval until total has passed or f returns false.
// It is for scenarios whose promise is about time ("a reload every second").
func Every(interval, total time.Duration, f func(i int) bool) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	end := time.NewTimer(total)
	defer end.Stop()
	for i := 0; ; i++ {
		if !f(i) {
			return
		}
		select {
		case <-tick.C:
		case <-end.C:
			return
		}
	}
}
