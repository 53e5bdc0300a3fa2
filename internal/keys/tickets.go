package keys

import "time"

// RotateTickets makes a new key for session tickets when the present one has
// encrypted for the ticket period at the time now, and reports whether it did.
// The keys before it still decrypt: at most two, and none that was replaced
// two periods ago or earlier.
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
	kept := []ticket{newTicket(now)}
	// What counts is how long a key no longer encrypts, not its age: clients
	// may have got tickets of a key until the moment of its replacement.
	replaced := now
	for _, t := range c.tickets {
		if len(kept) == keptTickets || s.period > 0 && now.Sub(replaced) >= 2*s.period {
			break
		}
		kept = append(kept, t)
		replaced = t.created
	}
	c.tickets = kept
	return c
}
