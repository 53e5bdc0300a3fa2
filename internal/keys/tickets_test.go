package keys

import (
	"bytes"
	"reflect"
	"slices"
	"testing"
	"time"
)

var start = time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC)

func openAt(t *testing.T, dir string, o Options, now time.Time) *Store {
	t.Helper()
	e := systemEnv()
	e.now = func() time.Time { return now }
	s, err := open(dir, o, e)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func rotate(t *testing.T, s *Store, now time.Time, want bool) {
	t.Helper()
	changed, err := s.RotateTickets(now)
	if err != nil || changed != want {
		t.Fatalf("RotateTickets(start + %v) = %v, %v; want %v", now.Sub(start), changed, err, want)
	}
}

func TestTicketsRotateDaily(t *testing.T) {
	dir := newDir(t)
	s := openAt(t, dir, Options{}, start)
	if due := s.TicketsDue(); !due.Equal(start.Add(24 * time.Hour)) {
		t.Errorf("TicketsDue = %v", due)
	}
	var all [][]byte // newest first
	all = append(all, s.Keys().Tickets...)
	for day := range 6 {
		begin := start.Add(time.Duration(day) * 24 * time.Hour)
		rotate(t, s, begin, false)
		rotate(t, s, begin.Add(24*time.Hour-time.Second), false)
		rotate(t, s, begin.Add(24*time.Hour), true)
		got := s.Keys().Tickets
		all = append([][]byte{got[0]}, all...)
		if want := all[:min(len(all), 3)]; !reflect.DeepEqual(got, want) {
			t.Fatalf("day %d: not the new key and the two before it", day)
		}
		s = openAt(t, dir, Options{}, begin) // and it lasts
		if !reflect.DeepEqual(s.Keys().Tickets, got) {
			t.Fatalf("day %d: ticket keys differ after opening again", day)
		}
	}
	slices.SortFunc(all, bytes.Compare)
	if n := len(slices.CompactFunc(all, bytes.Equal)); n != 7 {
		t.Errorf("%d distinct keys in 7", n)
	}
}

// TestTicketsReplacedLate: a key that encrypted until a moment ago decrypts,
// however old it is; one that has not for two periods does not.
func TestTicketsReplacedLate(t *testing.T) {
	s := openAt(t, newDir(t), Options{}, start)
	first := s.Keys().Tickets[0]
	week := 7 * 24 * time.Hour
	rotate(t, s, start.Add(week), true)
	got := s.Keys().Tickets
	if len(got) != 2 || !bytes.Equal(got[1], first) {
		t.Fatal("the key that was in use for a week is not kept")
	}
	second := got[0]
	rotate(t, s, start.Add(week), false)
	rotate(t, s, start.Add(2*week), true)
	if got := s.Keys().Tickets; len(got) != 2 || !bytes.Equal(got[1], second) {
		t.Error("the key that was replaced a week ago is kept, or the last one is not")
	}
}

func TestTicketsAndAWrongClock(t *testing.T) {
	s := openAt(t, newDir(t), Options{TicketPeriod: time.Hour}, start.AddDate(50, 0, 0))
	future := s.Keys().Tickets[0]
	rotate(t, s, start, true)
	rotate(t, s, start.Add(-30*time.Minute), false) // a small step back is no reason
	rotate(t, s, start.Add(time.Hour), true)
	if got := s.Keys().Tickets; len(got) != 3 || !bytes.Equal(got[2], future) {
		t.Error("a key made while the clock was wrong is dropped early")
	}
	rotate(t, s, start.Add(2*time.Hour), true)
	for _, key := range s.Keys().Tickets {
		if bytes.Equal(key, future) {
			t.Error("a key made while the clock was wrong is kept for ever")
		}
	}
}

func TestTicketPeriodOption(t *testing.T) {
	dir := newDir(t)
	s := openAt(t, dir, Options{TicketPeriod: time.Minute}, start)
	rotate(t, s, start.Add(59*time.Second), false)
	rotate(t, s, start.Add(60*time.Second), true)

	never := openAt(t, dir, Options{TicketPeriod: -1}, start)
	rotate(t, never, start.AddDate(1, 0, 0), false)
	if due := never.TicketsDue(); !due.IsZero() {
		t.Errorf("TicketsDue = %v, want never", due)
	}
}

func TestRotateNow(t *testing.T) {
	for _, period := range []time.Duration{0, -1} {
		s := openAt(t, newDir(t), Options{TicketPeriod: period}, start)
		before := s.Keys()
		for range 5 {
			if err := s.Rotate(start.Add(time.Second)); err != nil {
				t.Fatal(err)
			}
		}
		after := s.Keys()
		if len(after.Tickets) != 3 || bytes.Equal(after.Tickets[0], before.Tickets[0]) {
			t.Errorf("%d ticket keys after five rotations, want 3 new ones", len(after.Tickets))
		}
		after.Tickets = before.Tickets
		if !reflect.DeepEqual(after, before) {
			t.Error("something else was rotated, too")
		}
	}
}
