package supervisor

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
	"github.com/holdfast-quic/holdfast/shm"
)

// eventsPulse is how often a quiet event stream shows that it lives.
const eventsPulse = 15 * time.Second

func (a *admin) status(w http.ResponseWriter, r *http.Request) {
	var st *Status
	if err := a.s.call(r.Context(), func(s *Supervisor) { st = s.status() }); err != nil {
		a.fail(w, err)
		return
	}
	a.answer(w, http.StatusOK, st)
}

func (a *admin) conns(w http.ResponseWriter, r *http.Request) {
	generation, _, err := parseNumber(r.URL.Query().Get("generation"), 32)
	if err != nil {
		a.fail(w, fmt.Errorf("%w: generation: %w", ErrUsage, err))
		return
	}
	number, given, err := parseNumber(r.URL.Query().Get("slot"), 16)
	if err != nil {
		a.fail(w, fmt.Errorf("%w: slot: %w", ErrUsage, err))
		return
	}
	slot := -1
	if given {
		slot = int(number)
	}
	a.query(w, r, func(s *Supervisor) (<-chan *connsQuery, error) {
		return s.ask(s.workersWhere(shm.Generation(generation), slot), func(seq uint64) *lifeline.Message {
			return &lifeline.Message{Kind: lifeline.KindConnsQuery, ConnsQuery: &lifeline.ConnsQuery{Seq: seq}}
		}), nil
	})
}

func (a *admin) closeConn(w http.ResponseWriter, r *http.Request) {
	var in struct {
		ID string `json:"id"`
	}
	if err := a.body(w, r, &in); err != nil {
		a.fail(w, err)
		return
	}
	a.query(w, r, func(s *Supervisor) (<-chan *connsQuery, error) {
		owner, err := s.ownerOf(in.ID)
		if err != nil {
			return nil, err
		}
		return s.ask([]*worker{owner}, func(seq uint64) *lifeline.Message {
			return &lifeline.Message{Kind: lifeline.KindCloseConn, CloseConn: &lifeline.CloseConn{Seq: seq, ID: in.ID}}
		}), nil
	})
}

// query asks workers by way of the loop and writes what they answer.
func (a *admin) query(w http.ResponseWriter, r *http.Request, ask func(*Supervisor) (<-chan *connsQuery, error)) {
	var ch <-chan *connsQuery
	var askErr error
	err := a.s.call(r.Context(), func(s *Supervisor) { ch, askErr = ask(s) })
	if err == nil {
		err = askErr
	}
	if err != nil {
		a.fail(w, err)
		return
	}
	q, err := wait(r.Context(), a.s, ch)
	switch {
	case err != nil:
		a.fail(w, err)
	case r.Method == http.MethodPost && q.refuse != "":
		a.fail(w, fmt.Errorf("%w: %s", ErrNotFound, q.refuse))
	case r.Method == http.MethodPost && len(q.list.Silent) > 0:
		a.fail(w, fmt.Errorf("%w: worker %s did not answer", ErrTimeout, q.list.Silent[0]))
	default:
		a.answer(w, http.StatusOK, q.list)
	}
}

// checkSegment verifies the segment while it is in use. What is found only
// once was a change under way; a fault stays.
func (a *admin) checkSegment(w http.ResponseWriter, r *http.Request) {
	const looks = 3
	var faults map[string]bool
	for range looks {
		errs, err := a.look(r.Context())
		if err != nil {
			a.fail(w, err)
			return
		}
		found := map[string]bool{}
		for _, err := range errs {
			if text := err.Error(); faults == nil || faults[text] {
				found[text] = true
			}
		}
		if faults = found; len(faults) == 0 {
			break
		}
	}
	list := make([]string, 0, len(faults))
	for text := range faults {
		list = append(list, text)
	}
	a.answer(w, http.StatusOK, struct {
		Faults []string `json:"faults"`
	}{list})
}

// look checks the segment once, beside the loop, which keeps it mapped until
// that is done.
func (a *admin) look(ctx context.Context) (faults []error, err error) {
	done := make(chan struct{})
	if err := a.s.call(ctx, func(s *Supervisor) {
		if s.finished {
			err = ErrStopping
			close(done)
			return
		}
		seg, inUse := s.seg, s.slots.inUse()
		s.background.Go(func() {
			defer close(done)
			faults = checkSegment(seg, inUse)
		})
	}); err != nil {
		return nil, err
	}
	<-done
	return faults, err
}

// reload answers when the new generation is current, or why it is not.
func (a *admin) reload(w http.ResponseWriter, r *http.Request) {
	result := make(chan error, 1)
	if err := a.s.call(r.Context(), func(s *Supervisor) { s.requestReload(result) }); err != nil {
		a.fail(w, err)
		return
	}
	err, waitErr := wait(r.Context(), a.s, result)
	if waitErr != nil {
		err = waitErr
	}
	var generation shm.Generation
	if err == nil {
		err = a.s.call(r.Context(), func(s *Supervisor) {
			if s.current != nil {
				generation = s.current.id
			}
		})
	}
	if err != nil {
		a.fail(w, err)
		return
	}
	a.answer(w, http.StatusOK, struct {
		Generation shm.Generation `json:"generation"`
	}{generation})
}

// drain tells the clients of a draining generation to leave, or takes back
// what of that has not been sent.
func (a *admin) drain(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Generation shm.Generation `json:"generation"`
		Cancel     bool           `json:"cancel"`
	}
	err := a.body(w, r, &in)
	if err == nil {
		var drainErr error
		err = a.s.call(r.Context(), func(s *Supervisor) { drainErr = s.orderDrain(in.Generation, in.Cancel) })
		if err == nil {
			err = drainErr
		}
	}
	if err != nil {
		a.fail(w, err)
		return
	}
	a.answer(w, http.StatusOK, struct{}{})
}

// orderDrain changes how a draining generation drains. Its deadline stays.
func (s *Supervisor) orderDrain(id shm.Generation, cancel bool) error {
	for _, g := range s.generations {
		switch {
		case g.id != id:
		case g.state != GenerationDraining:
			return fmt.Errorf("%w: generation %d is %s: only a draining one can be told to end sooner", ErrState, id, g.state)
		default:
			g.mode = lifeline.DrainGoAway
			if cancel {
				g.mode = lifeline.DrainHold
			}
			for w := range g.workers {
				s.workerEvent(w, wkDrain)
			}
			return nil
		}
	}
	return fmt.Errorf("%w: there is no generation %d", ErrNotFound, id)
}

// stop answers when the last worker is gone.
func (a *admin) stop(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Fast bool `json:"fast"`
	}
	if err := a.body(w, r, &in); err != nil {
		a.fail(w, err)
		return
	}
	ended := make(chan struct{})
	err := a.s.call(r.Context(), func(s *Supervisor) {
		if s.finished {
			close(ended)
			return
		}
		s.stopWaiters = append(s.stopWaiters, ended)
		kind := stopGraceful
		if in.Fast {
			kind = stopFast
		}
		s.stop(kind)
	})
	if err == nil {
		_, err = wait(r.Context(), a.s, ended)
	}
	if err != nil {
		a.fail(w, err)
		return
	}
	a.answer(w, http.StatusOK, struct{}{})
}

// events streams what happens as server-sent events.
func (a *admin) events(w http.ResponseWriter, r *http.Request) {
	ch := a.s.hub.subscribe()
	defer a.s.hub.unsubscribe(ch)
	control := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	pulse := time.NewTicker(eventsPulse)
	defer pulse.Stop()
	send := func(format string, args ...any) bool {
		_ = control.SetWriteDeadline(time.Now().Add(adminWriteTimeout))
		_, err := fmt.Fprintf(w, format, args...)
		return err == nil && control.Flush() == nil
	}
	if !send(": holdfast\n\n") {
		return
	}
	for {
		var ok bool
		select {
		case n, open := <-ch:
			if !open {
				return
			}
			ok = send("event: %s\ndata: %s\n\n", n.name, n.data)
		case <-pulse.C:
			ok = send(": pulse\n\n")
		case <-r.Context().Done():
			return
		}
		if !ok {
			return
		}
	}
}
