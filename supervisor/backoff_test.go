package supervisor

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b backoff
		var got []time.Duration
		for range 11 {
			b.start(time.Now())
			time.Sleep(time.Second) // lives that long each time
			got = append(got, b.next(time.Now()))
		}
		want := 100 * time.Millisecond
		for i, pause := range got {
			if pause != want {
				t.Errorf("pause %d is %v, want %v", i, pause, want)
			}
			want = min(2*want, 30*time.Second)
		}
		for range 100 {
			if pause := b.next(time.Now()); pause != 30*time.Second {
				t.Fatalf("pause %v beyond the limit", pause)
			}
		}
		b.start(time.Now())
		time.Sleep(60 * time.Second)
		if pause := b.next(time.Now()); pause != 100*time.Millisecond {
			t.Errorf("pause %v after a sound life", pause)
		}
	})
}

func TestTimerThatIsStoppedAfterItFired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Supervisor{events: make(chan event, 1), done: make(chan struct{})}
		ran := false
		timer := s.after(time.Second, func() { ran = true })
		time.Sleep(2 * time.Second)
		e := <-s.events // fired, on its way
		timer.stop()
		e.handle(s)
		if ran {
			t.Error("a stopped timer ran")
		}
	})
}
