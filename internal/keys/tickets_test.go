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

func TestTicketsAfterALongStop(t *testing.T) {
	s := openAt(t, newDir(t), Options{}, start)
	first := s.Keys().Tickets[0]
	now := start.Add(71 * time.Hour)
	rotate(t, s, now, true)
	if got := s.Keys().Tickets; len(got) != 2 || !bytes.Equal(got[1], first) {
		t.Errorf("a key of 71 hours is not kept")
	}
	rotate(t, s, now, false)
	now = now.Add(72 * time.Hour)
	rotate(t, s, now, true)
	if got := s.Keys().Tickets; len(got) != 1 {
		t.Errorf("%d keys are left, want only the new one: the others are over 3 days old", len(got))
	}
}

func TestTicketsAndAWrongClock(t *testing.T) {
	s := openAt(t, newDir(t), Options{TicketPeriod: time.Hour}, start.AddDate(50, 0, 0))
	rotate(t, s, start, true)
	if n := len(s.Keys().Tickets); n != 1 {
		t.Errorf("%d keys are left, want 1: the other is of the far future", n)
	}
	rotate(t, s, start.Add(-30*time.Minute), false) // a small step back is no reason
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
