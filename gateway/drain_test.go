package gateway

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/worker"
)

// fakeSession notes what is done to it.
type fakeSession struct {
	told   atomic.Int32
	closed atomic.Int32
	over   atomic.Bool // finished
}

func (s *fakeSession) goodbye()                                     { s.told.Add(1) }
func (s *fakeSession) finished(time.Time, time.Time, patience) bool { return s.over.Load() }
func (s *fakeSession) close()                                       { s.closed.Add(1) }

// fakeDrain is a drainer with a clock of its own and n sessions.
func fakeDrain(t *testing.T, n int) (*drainer, []*fakeSession, *time.Time) {
	now := time.Unix(1000, 0)
	d := newDrainer(testLog(t))
	d.now = func() time.Time { return now }
	sessions := make([]*fakeSession, n)
	for i := range sessions {
		sessions[i] = new(fakeSession)
		d.add(sessions[i], "")
	}
	return d, sessions, &now
}

func told(sessions []*fakeSession) (n int) {
	for _, s := range sessions {
		n += int(s.told.Load())
	}
	return n
}

func TestGoodbyesAreSpreadOverTheWindow(t *testing.T) {
	d, sessions, now := fakeDrain(t, 1000)
	d.round()
	if told(sessions) != 0 {
		t.Fatal("goodbye without an order")
	}
	d.spread(10 * time.Second)
	last := 0
	for i := range 200 {
		*now = now.Add(50 * time.Millisecond)
		d.round()
		n := told(sessions)
		if n-last > 10 {
			t.Fatalf("round %d told %d clients at once", i, n-last)
		}
		last = n
		if i == 99 && (n < 450 || n > 600) {
			t.Errorf("%d of 1000 were told in half of the window", n)
		}
	}
	if last != 1000 {
		t.Errorf("%d of 1000 were told within the window", last)
	}
	late := new(fakeSession)
	d.add(late, "")
	d.round()
	if late.told.Load() != 1 {
		t.Error("who came after the window was not told")
	}
}

func TestCancelledGoodbyesAreNotSaid(t *testing.T) {
	d, sessions, now := fakeDrain(t, 100)
	d.spread(10 * time.Second)
	*now = now.Add(5 * time.Second)
	d.round()
	half := told(sessions)
	d.hold()
	*now = now.Add(20 * time.Second)
	d.round()
	if n := told(sessions); n != half || n < 40 || n > 60 {
		t.Errorf("%d were told before the drain was canceled, %d in the end", half, n)
	}
	d.spread(0)
	d.round()
	if n := told(sessions); n != 100 {
		t.Errorf("%d were told in the end, each once", n)
	}
}

func TestOnlyFinishedSessionsAreClosed(t *testing.T) {
	d, sessions, _ := fakeDrain(t, 3)
	sessions[0].over.Store(true)
	d.spread(0)
	d.round()
	d.round() // asks nobody twice
	d.closing.Wait()
	if sessions[0].closed.Load() != 1 || sessions[1].closed.Load() != 0 {
		t.Error("the wrong sessions were closed")
	}
	d.hold() // what was told is still closed once it is finished
	sessions[1].over.Store(true)
	d.round()
	d.closing.Wait()
	if sessions[1].closed.Load() != 1 {
		t.Error("a session that was told is not closed after the drain was canceled")
	}
}

func TestStopClosesWhatIsLeftBeforeTheGraceEnds(t *testing.T) {
	d := newDrainer(testLog(t))
	busy := new(fakeSession)
	d.add(busy, "")
	start := time.Now()
	d.stop(200*time.Millisecond, nil)
	if took := time.Since(start); took < 140*time.Millisecond || took > 200*time.Millisecond {
		t.Errorf("took %s", took)
	}
	if busy.told.Load() != 1 || busy.closed.Load() != 1 || d.count() != 0 {
		t.Error("the session was not told and closed once")
	}
	late := new(fakeSession)
	d.add(late, "")
	if late.told.Load() != 1 {
		t.Error("who came while the process ends was not told at once")
	}
}

func TestASessionThatDoesNotCloseHoldsUpNobody(t *testing.T) {
	d := newDrainer(testLog(t))
	stuck, other := &stuckSession{until: make(chan struct{})}, new(fakeSession)
	defer close(stuck.until)
	d.add(stuck, "")
	d.add(other, "")
	over := make(chan struct{})
	time.AfterFunc(300*time.Millisecond, func() { close(over) })
	d.stop(100*time.Millisecond, over)
	if other.closed.Load() != 1 {
		t.Error("the other session is not closed")
	}
}

// stuckSession does not close.
type stuckSession struct {
	fakeSession
	until chan struct{}
}

func (s *stuckSession) close() { <-s.until }

func TestStopWithoutConnectionsIsImmediate(t *testing.T) {
	d := newDrainer(testLog(t))
	start := time.Now()
	d.stop(time.Minute, nil)
	if took := time.Since(start); took > time.Second {
		t.Errorf("took %s", took)
	}
}

func TestListenersEndAtTheirOwnLimits(t *testing.T) { // C015
	d, sessions, now := fakeDrain(t, 2)
	busy, idle, late := new(fakeSession), new(fakeSession), new(fakeSession)
	idle.over.Store(true)
	d.add(busy, "short")
	d.add(idle, "short")
	if _, any := d.pause(); any {
		t.Error("something is to be done before the drain")
	}
	begin := *now
	d.limit(map[string]worker.Limit{"short": {Goodbye: begin.Add(10 * time.Second), End: begin.Add(15 * time.Second)}})
	at := func(after time.Duration) {
		*now = begin.Add(after)
		d.round()
		d.closing.Wait()
	}
	check := func(s *fakeSession, told, closed int32) {
		t.Helper()
		if s.told.Load() != told || s.closed.Load() != closed {
			t.Errorf("%v after the begin: told %d, closed %d; want %d, %d", now.Sub(begin), s.told.Load(), s.closed.Load(), told, closed)
		}
	}
	at(9 * time.Second)
	check(busy, 0, 0)
	if pause, any := d.pause(); !any || pause != time.Second {
		t.Errorf("next look after %v, %v", pause, any)
	}
	at(10 * time.Second)
	check(busy, 1, 0)
	check(idle, 1, 1)
	if pause, any := d.pause(); !any || pause != goodbyeTick {
		t.Errorf("next look after %v, %v", pause, any)
	}
	d.add(late, "short")
	check(late, 1, 0)
	if len(d.wake) != 1 {
		t.Error("a late session wakes nobody")
	}
	at(15*time.Second - 1)
	check(busy, 1, 0)
	at(15 * time.Second)
	check(busy, 1, 1)
	check(late, 1, 1)
	for _, s := range sessions {
		check(s, 0, 0)
	}
	d.remove(busy)
	d.remove(idle)
	d.remove(late)
	if _, any := d.pause(); any {
		t.Error("something is to be done after the last of the listener's sessions")
	}
}

func TestPatienceFollowsTheGrace(t *testing.T) {
	for grace, want := range map[time.Duration]patience{
		0:               hasty,
		2 * time.Second: hasty,
		3 * time.Second: {quiet: time.Second, idle: time.Second},
		time.Minute:     atEase,
	} {
		if got := patienceFor(grace); got != want {
			t.Errorf("grace of %v: %+v, not %+v", grace, got, want)
		}
	}
}
