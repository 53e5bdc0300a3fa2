package worker

import (
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// newTestWaiter returns a waiter and an eventfd that it watches.
func newTestWaiter(t *testing.T) (*waiter, int) {
	t.Helper()
	w, err := newWaiter()
	if err != nil {
		t.Fatal(err)
	}
	bell, err := newEventFD()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(bell) })
	if err := w.addEdge(bell); err != nil {
		t.Fatal(err)
	}
	return w, bell
}

// within fails the test when nothing comes from c in good time.
func within[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(20 * time.Second):
		t.Fatal("timed out: " + what)
		panic("unreachable")
	}
}

// However the two ways to wait alternate, an event that comes at any moment
// ends the wait.
func TestWaiterLosesNoEvent(t *testing.T) {
	w, bell := newTestWaiter(t)
	const events = 3000
	var posted atomic.Int64
	seen := make(chan int64)
	var lingered int
	go func() {
		defer close(seen)
		for have := int64(0); have < events; have++ {
			err := w.wait(func() look {
				if posted.Load() > have {
					return found
				}
				if !w.open {
					lingered++
				}
				if have%5 == 0 {
					return quiet
				}
				return passing
			})
			if err != nil {
				t.Error(err)
				return
			}
			seen <- have
		}
	}()
	for range events {
		switch rand.IntN(8) {
		case 0: // longer than it lingers
			time.Sleep(lingerTime + time.Duration(rand.IntN(2000))*time.Microsecond)
		case 1:
			for end := time.Now().Add(time.Duration(rand.IntN(200)) * time.Microsecond); time.Now().Before(end); {
			}
		}
		posted.Add(1)
		signalFD(bell)
		within(t, seen, "an event was lost")
	}
	if lingered == 0 {
		t.Error("never lingered")
	}
	if err := w.close(); err != nil {
		t.Error(err)
	}
}

// A goroutine with something to do for others in its process leaves the
// scheduler's processor to them.
func TestWaiterLingersOnlyWhilePassing(t *testing.T) {
	for _, outcome := range []look{quiet, passing} {
		w, bell := newTestWaiter(t)
		shut, tries := 0, 0
		err := w.wait(func() look {
			if !w.open && tries > 0 {
				shut++
			}
			if tries++; tries == 2000 {
				return found
			}
			signalFD(bell) // the sleep to come is a short one
			return outcome
		})
		if err != nil {
			t.Fatal(err)
		}
		if lingered := shut > 0; lingered != (outcome == passing) {
			t.Errorf("outcome %d: lingered %d times of %d", outcome, shut, tries)
		}
		if err := w.close(); err != nil {
			t.Error(err)
		}
	}
}

// Close and a deadline get through to a goroutine that never runs out of
// events.
func TestWaiterEndsUnderTraffic(t *testing.T) {
	for name, end := range map[string]struct {
		do   func(*waiter) error
		want error // of a read
	}{
		"close":    {(*waiter).close, net.ErrClosed},
		"deadline": {func(w *waiter) error { return w.file.SetReadDeadline(time.Now()) }, os.ErrDeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			w, bell := newTestWaiter(t)
			var tries atomic.Int64
			ended := make(chan error, 1)
			go func() {
				ended <- w.wait(func() look {
					tries.Add(1)
					signalFD(bell)
					return passing
				})
			}()
			for tries.Load() < 100 {
				time.Sleep(time.Millisecond)
			}
			if err := end.do(w); err != nil {
				t.Fatal(err)
			}
			if err := readError(within(t, ended, "still waiting")); !errors.Is(err, end.want) {
				t.Errorf("got %v, want %v", err, end.want)
			}
		})
	}
}
