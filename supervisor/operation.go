package supervisor

import (
	"errors"
	"slices"
	"time"

	"github.com/holdfast-quic/holdfast/shm"
)

// Kinds of operations.
const (
	OperationStart    = "start" // the first generation; it has no number
	OperationReload   = "reload"
	OperationUpgrade  = "upgrade"
	OperationPromote  = "promote"
	OperationRollback = "rollback"
)

// States of an operation.
const (
	OperationWaiting = "waiting" // for its turn
	OperationRunning = "running"
	OperationDone    = "done"
	OperationFailed  = "failed"
)

// Stages of an operation that runs, in this order. Not each kind has each.
const (
	StageLoading   = "loading"   // reads the configuration
	StageVerifying = "verifying" // the new program looks at what it would take over
	StageRoom      = "room"      // waits for draining generations to end
	StageStarting  = "starting"  // starts workers, probes them, hands over
	StageCanary    = "canary"    // a share of the new connections goes to the new generation
	StageSettling  = "settling"  // the new generation serves, and must not crash at once
	StageExec      = "exec"      // the supervisor itself becomes the new program
)

// maxOperations is how many ended operations are remembered.
const maxOperations = 32

// Operation is something that takes a while, as the admin API shows it and as
// it is kept over the supervisor's own end.
type Operation struct {
	ID    uint64 `json:"id"`
	Kind  string `json:"kind"`
	State string `json:"state"`
	Stage string `json:"stage,omitempty"` // while it runs
	// Reason and Code say why it failed; Reason is one line.
	Reason string `json:"reason,omitempty"`
	Code   string `json:"code,omitempty"`
	// Warning is what will be worse than it was, although it does not fail.
	Warning string `json:"warning,omitempty"`
	// Because says why there is an operation that nobody asked for.
	Because string `json:"because,omitempty"`
	// Generation is the one that it started or turned to, once there is one.
	Generation shm.Generation `json:"generation,omitempty"`
	Asked      time.Time      `json:"asked"`
	Ended      *time.Time     `json:"ended,omitempty"`
	Merged     int            `json:"merged,omitempty"` // further requests that it serves
	// Upgrade is what was asked for.
	Upgrade *UpgradeRequest `json:"upgrade,omitempty"`
	// Version and BuildID of the new program, once it has answered.
	Version string `json:"version,omitempty"`
	BuildID string `json:"build_id,omitempty"`
	// Canary is how the canary has done, once there is one.
	Canary *CanaryReport `json:"canary,omitempty"`
}

// ended reports whether nothing more happens to the operation.
func (o *Operation) ended() bool { return o.State == OperationDone || o.State == OperationFailed }

// UpgradeRequest is what an upgrade is asked to do.
type UpgradeRequest struct {
	// Binary is the absolute path of the program. Empty: that which the
	// instance was started by.
	Binary string `json:"binary,omitempty"`
	// Canary is the share of new connections that goes to the new generation
	// at first, in percent; 0 for all of them at once.
	Canary float64 `json:"canary,omitempty"`
	// Soak is how long the canary lasts before Auto decides, in nanoseconds.
	Soak time.Duration `json:"soak,omitempty"`
	// Auto promotes or rolls back without being told.
	Auto bool `json:"auto,omitempty"`
}

// operation is one Operation with all that it needs while it is under way. It
// belongs to the loop.
type operation struct {
	Operation

	spec    *Spec // that the generation is to have
	gen     *generation
	waiting bool // for draining generations to end
	stale   bool // asked for again while waiting: read the configuration again
	merged  bool // the one before has done it all
	tried   bool // the new program has been run as a supervisor, and come as far as that
	waiters []chan<- error
	over    chan struct{} // closed at the end

	image *image // that the new generation runs; held; nil: the one that serves
	self  *image // that the supervisor is to run in the end; held; nil: as it is
}

// newOperation makes an operation and numbers it.
func (s *Supervisor) newOperation(kind string) *operation {
	s.lastOperation++
	op := unnumbered(kind)
	op.ID = s.lastOperation
	s.operations = append(s.operations, op)
	s.forgetOperations()
	return op
}

// unnumbered makes an operation that nobody can ask about.
func unnumbered(kind string) *operation {
	return &operation{
		Operation: Operation{Kind: kind, State: OperationWaiting, Asked: time.Now()},
		over:      make(chan struct{}),
	}
}

// forgetOperations drops the oldest of those that have ended.
func (s *Supervisor) forgetOperations() {
	ended := 0
	for _, op := range s.operations {
		if op.ended() {
			ended++
		}
	}
	s.operations = slices.DeleteFunc(s.operations, func(op *operation) bool {
		if ended <= maxOperations || !op.ended() {
			return false
		}
		ended--
		return true
	})
}

// findOperation returns the operation of that number, or nil.
func (s *Supervisor) findOperation(id uint64) *operation {
	for _, op := range s.operations {
		if op.ID == id {
			return op
		}
	}
	return nil
}

// stage says how far an operation is.
func (s *Supervisor) stage(op *operation, stage string) {
	if op.State != OperationRunning || op.Stage != stage {
		op.State, op.Stage = OperationRunning, stage
		if op.ID != 0 {
			s.hub.publish("operation", op.Operation)
		}
	}
}

// end records how an operation has ended and tells who waits for it. A second
// end changes nothing.
func (s *Supervisor) end(op *operation, err error) {
	if op.ended() {
		return
	}
	now := time.Now()
	op.State, op.Stage, op.Ended = OperationDone, "", &now
	if err != nil {
		op.State, op.Reason, op.Code = OperationFailed, oneLine(err), codeOf(err)
	}
	op.image.release()
	op.self.release()
	op.image, op.self = nil, nil
	for _, waiter := range op.waiters {
		waiter <- err
	}
	op.waiters = nil
	close(op.over)
	if op.ID != 0 {
		s.hub.publish("operation", op.Operation)
	}
	s.forgetOperations()
}

// operationList returns what is remembered, oldest first, for status and for
// the state document.
func (s *Supervisor) operationList() []Operation {
	list := make([]Operation, 0, len(s.operations))
	for _, op := range s.operations {
		list = append(list, op.Operation)
	}
	return list
}

// restoreOperations takes over what a supervisor before this one knew. What
// was waiting waits again; what was running is returned, if there is one, and
// has to be ended or resumed.
func (s *Supervisor) restoreOperations(list []Operation, last uint64) (running *operation) {
	s.lastOperation = last
	s.operations = s.operations[:0]
	for _, o := range list {
		op := &operation{Operation: o, over: make(chan struct{})}
		s.operations = append(s.operations, op)
		s.lastOperation = max(s.lastOperation, o.ID)
		switch {
		case o.ended():
			close(op.over)
		case o.State == OperationRunning:
			running = op
		case o.Kind == OperationReload || o.Kind == OperationUpgrade && o.Upgrade != nil:
			s.queue = append(s.queue, op)
		default:
			s.end(op, errors.New("the supervisor ended before its turn"))
		}
	}
	return running
}
