package keys

import (
	"slices"
	"time"
)

// RotateTickets makes a new key for session tickets when the present one has
// encrypted for the ticket period at the time now, and reports whether it did.
// The keys before it still decrypt: at most two, and none for longer than
// three periods after it was made.
//
// On an error the keys are as before, and the call may be repeated.
func (s *Store) RotateTickets(now time.Time) (changed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.due(now) {
		return false, nil
	}
	if err := s.update(func(c content) error { return s.save(s.rotated(c, now)) }); err != nil {
		return false, err
	}
	return true, nil
}

// Rotate does what RotateTickets does, due or not.
func (s *Store) Rotate(now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.update(func(c content) error { return s.save(s.rotated(c, now)) })
}

// TicketsDue returns when RotateTickets will make a new key; never, if zero.
func (s *Store) TicketsDue() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.period < 0 {
		return time.Time{}
	}
	return s.content.tickets[0].created.Add(s.period)
}

func (s *Store) due(now time.Time) bool {
	if s.period < 0 {
		return false
	}
	age := now.Sub(s.content.tickets[0].created)
	// A key of the future was made while the clock was wrong. Waiting for its
	// time to come could take for ever.
	return age >= s.period || age <= -s.period
}

func (s *Store) rotated(c content, now time.Time) content {
	old := slices.DeleteFunc(slices.Clone(c.tickets), func(t ticket) bool {
		age := now.Sub(t.created)
		return s.period > 0 && (age >= keptTickets*s.period || age <= -keptTickets*s.period)
	})
	c.tickets = append([]ticket{newTicket(now)}, old[:min(len(old), keptTickets-1)]...)
	return c
}
