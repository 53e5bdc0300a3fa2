package supervisor

import (
	"fmt"
	"net/http"
	"time"
)

// maxOperationWait bounds how long one request waits for an operation. The
// client asks again.
const maxOperationWait = 60 // seconds

// upgrade starts an upgrade and answers with the operation's number at once.
func (a *admin) upgrade(w http.ResponseWriter, r *http.Request) {
	var in UpgradeRequest
	if err := a.body(w, r, &in); err != nil {
		a.fail(w, err)
		return
	}
	a.begin(w, r, func(s *Supervisor) (*operation, error) { return s.requestUpgrade(in) })
}

// promote makes the canary current, and answers with the operation's number at
// once.
func (a *admin) promote(w http.ResponseWriter, r *http.Request) {
	a.begin(w, r, (*Supervisor).requestPromote)
}

// rollback ends the canary or returns to the generation before. When it has
// answered, new connections have turned back.
func (a *admin) rollback(w http.ResponseWriter, r *http.Request) {
	a.begin(w, r, (*Supervisor).requestRollback)
}

// begin runs what begins an operation in the loop and answers with its number.
func (a *admin) begin(w http.ResponseWriter, r *http.Request, f func(*Supervisor) (*operation, error)) {
	var answer struct {
		Operation uint64 `json:"operation"`
	}
	var opErr error
	err := a.s.call(r.Context(), func(s *Supervisor) {
		var op *operation
		if op, opErr = f(s); opErr == nil {
			answer.Operation = op.ID
			a.owed.Add(1) // in the loop: what the operation does next may end this program
		}
	})
	if err == nil {
		err = opErr
	}
	if err != nil {
		a.fail(w, err)
		return
	}
	a.answer(w, http.StatusAccepted, answer)
	_ = http.NewResponseController(w).Flush()
	a.owed.Add(-1)
}

// settle waits a moment for the answers that name an operation: a client that
// does not know the number can't ask the next program how it went.
func (a *admin) settle() {
	for end := time.Now().Add(settlePatience); a.owed.Load() > 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

// operation describes an operation, once it has ended or when the wait is over.
func (a *admin) operation(w http.ResponseWriter, r *http.Request) {
	id, _, err := parseNumber(r.PathValue("id"), 64)
	if err != nil {
		a.fail(w, fmt.Errorf("%w: operation: %w", ErrUsage, err))
		return
	}
	seconds, _, err := parseNumber(r.URL.Query().Get("wait"), 16)
	if err != nil {
		a.fail(w, fmt.Errorf("%w: wait: %w", ErrUsage, err))
		return
	}
	seen, over, err := a.operationNow(r, id)
	if err == nil && seen != nil && !seen.ended() && seconds > 0 {
		limit := time.NewTimer(time.Duration(min(seconds, maxOperationWait)) * time.Second)
		defer limit.Stop()
		select {
		case <-over:
		case <-limit.C:
		case <-a.s.done:
		case <-r.Context().Done():
		}
		seen, _, err = a.operationNow(r, id)
	}
	switch {
	case err != nil:
		a.fail(w, err)
	case seen == nil:
		a.fail(w, fmt.Errorf("%w: there is no operation %d, or no more", ErrNotFound, id))
	default:
		a.answer(w, http.StatusOK, seen)
	}
}

// operationNow returns an operation as it is now, or nil, and a channel that is closed
// at its end.
func (a *admin) operationNow(r *http.Request, id uint64) (seen *Operation, over <-chan struct{}, err error) {
	err = a.s.call(r.Context(), func(s *Supervisor) {
		if op := s.findOperation(id); op != nil {
			o := op.Operation
			seen, over = &o, op.over
		}
	})
	return seen, over, err
}
