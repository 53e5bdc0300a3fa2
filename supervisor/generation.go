package supervisor

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
	"github.com/holdfast-quic/holdfast/shm"
)

const (
	// abandonGrace is what a worker has to end when its generation has failed,
	// fastGrace at a fast stop. killSlack is how much later SIGKILL follows.
	abandonGrace = time.Second
	fastGrace    = 2 * time.Second
	killSlack    = time.Second
)

// generation is all workers of one start or reload. It belongs to the loop.
type generation struct {
	id      shm.Generation
	spec    *Spec
	state   GenerationState
	since   time.Time // in this state
	wants   []wanted
	members []*member
	payload *os.File
	image   *image // that its workers run; held
	self    *image // that the supervisor runs while it is current; held
	alive   int    // processes that have not been reaped

	// The drain order in force; what the supervisor wants, whatever the
	// workers have made of it.
	mode     string
	window   time.Duration
	goodbye  time.Time           // when the last grace begins
	deadline time.Time           // by which all has ended
	limits   map[uint8]drainSpan // of listeners that end before, by ID
	grace    time.Duration       // of the stop that is ordered
	timer    *timer              // of the end of the drain

	handing    bool // its workers take over the sockets
	patient    bool // the current generation's workers may still acknowledge
	handTimer  *timer
	linger     time.Time      // its idle workers stay until then, for a rollback
	evicted    bool           // told to end early
	noTurns    bool           // its workers are of a build that can't share with a canary
	trial      *trial         // while it is to be, or is, a canary
	before     shm.Generation // that was current when it became current; 0: none
	done       tally          // of its workers that have ended
	lost       error          // why its last worker that it counted on was lost
	reason     error          // why it failed
	build, ver string         // of its workers' binary, as they say
}

// member is one of the places of a generation. Its process may be replaced.
type member struct {
	index    int
	w        *worker // nil while there is none
	back     backoff
	restarts int
	timer    *timer    // of the next start
	next     time.Time // when that is; zero: none is to come
}

// mask is the listener set of the directory.
func (g *generation) mask() uint64 {
	var m uint64
	for _, w := range g.wants {
		m |= 1 << w.listener.id
	}
	return m
}

func (g *generation) has(l *listener) bool {
	return slices.ContainsFunc(g.wants, func(w wanted) bool { return w.listener == l })
}

// asks reports whether the generation's own configuration names the set.
func (g *generation) asks(set *socketSet) bool {
	return slices.ContainsFunc(g.wants, func(w wanted) bool {
		return w.listener == set.listener && w.address == set.address &&
			(set.network == networkUDP && w.spec.QUIC || set.network == networkTCP && w.spec.TCP)
	})
}

// ended reports whether nothing comes of the generation any more.
func (g *generation) ended() bool { return g.state == GenerationRetired || g.state == GenerationFailed }

func (g *generation) workers(yield func(*worker) bool) {
	for _, m := range g.members {
		if m.w != nil && !yield(m.w) {
			return
		}
	}
}

// every reports whether all places have a worker for which ok holds.
func (g *generation) every(ok func(*worker) bool) bool {
	for _, m := range g.members {
		if m.w == nil || !ok(m.w) {
			return false
		}
	}
	return true
}

// startGeneration makes the generation of an operation and starts its
// processes. What fails here fails the operation.
func (s *Supervisor) startGeneration(op *operation, wants []wanted) {
	spec := op.spec
	g := &generation{
		id: s.nextGeneration, spec: spec, since: time.Now(), wants: wants, trial: s.trialOf(op),
		grace: fastGrace, mode: spec.Drain.Mode, window: spec.Drain.Window,
	}
	s.nextGeneration++
	for i := range spec.Workers {
		g.members = append(g.members, &member{index: i})
	}
	s.generations = append(s.generations, g)
	s.incoming, op.gen, op.Generation = g, g, g.id
	s.stage(op, StageStarting)
	s.log.Info("generation starting", zap.Uint32("generation", uint32(g.id)), zap.Int("workers", spec.Workers), zap.String("config_hash", spec.ConfigHash))
	s.hub.publish("generation", generationNews{g.id, g.state.String(), ""})
	var err error
	if g.image, err = s.workerImage(op); err == nil && spec.Account != nil {
		err = g.image.allows(spec.Account)
	}
	if err == nil {
		g.self = cmp.Or(op.self, s.self).hold()
		err = s.openPayload(g)
	}
	if err == nil {
		err = s.bindEarly(g)
	}
	if err == nil {
		if rotateErr := s.keys.rotateTickets(); rotateErr != nil {
			s.log.Error("rotate the session ticket keys", zap.Error(rotateErr))
		}
		for _, m := range g.members {
			if err = s.spawn(g, m); err != nil {
				break
			}
		}
	}
	if err != nil {
		g.reason = err
		s.generationEvent(g, genStepFailed)
		s.settle(g)
	}
}

// openPayload puts the payload where workers find it.
func (s *Supervisor) openPayload(g *generation) (err error) {
	g.payload, err = sealedFile("holdfast-config", g.spec.Payload)
	return err
}

// bindEarly binds what nobody receives yet, so that the workers have sockets
// to answer the probe from. What takes packets from a socket that is being
// read has to wait for the handover.
func (s *Supervisor) bindEarly(g *generation) error {
	for i := range g.wants {
		w := &g.wants[i]
		for _, set := range s.sockets.missing(*w) {
			if set.listener.takesFrom(set) {
				continue
			}
			if err := s.sockets.grow(set, g.spec.Workers); err != nil {
				return err
			}
			w.address = set.address // the port is known now
		}
	}
	return nil
}

// bindAll binds what is still missing: addresses that overlap, and a reader
// socket for each further worker.
func (s *Supervisor) bindAll(g *generation) error {
	for _, w := range g.wants {
		for _, set := range s.sockets.missing(w) {
			if err := s.sockets.grow(set, g.spec.Workers); err != nil {
				return err
			}
		}
		for _, set := range w.listener.sets {
			if g.asks(set) {
				if err := s.sockets.grow(set, g.spec.Workers); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// generationEvent looks up what the event means and does it.
func (s *Supervisor) generationEvent(g *generation, e generationEvent) {
	cell := generationTable[g.state][e]
	if cell.next != g.state {
		g.state, g.since = cell.next, time.Now()
		fields := []zap.Field{zap.Uint32("generation", uint32(g.id)), zap.Stringer("state", g.state), zap.Stringer("event", e)}
		reason := ""
		if g.reason != nil && g.state == GenerationFailed {
			reason = oneLine(g.reason)
			fields = append(fields, zap.String("reason", reason))
		}
		s.log.Info("generation", fields...)
		s.hub.publish("generation", generationNews{g.id, g.state.String(), reason})
	}
	if cell.do&doProbe != 0 {
		for w := range g.workers {
			s.startProbe(w)
		}
	}
	if cell.do&doHandover != 0 {
		s.startHandover(g)
	}
	if cell.do&doShare != 0 {
		s.openTrial(g)
	}
	if cell.do&doAdmit != 0 {
		s.admit(g)
	}
	if cell.do&doRestore != 0 {
		s.restoreGeneration(g)
	}
	if cell.do&doKeep != 0 {
		s.keepTrial(g)
	}
	if cell.do&doJudge != 0 {
		s.crashedOnTrial(g)
	}
	if cell.do&doDrain != 0 {
		s.drain(g, g.spec.Drain.Mode, g.spec.Drain.Window, g.spec.Drain.Timeout)
	}
	if cell.do&doDrainStop != 0 {
		stopTimeout := s.spec.Drain.StopTimeout
		s.drain(g, lifeline.DrainGoAway, min(g.spec.Drain.Window, stopTimeout/2), stopTimeout)
	}
	if cell.do&doStopOld != 0 {
		s.stopWorkers(g, g.lastGrace(time.Now()))
	}
	if cell.do&doStopFast != 0 {
		s.stopWorkers(g, fastGrace)
	}
	if cell.do&doAbandon != 0 {
		s.abandon(g)
	}
	if cell.do&doRetire != 0 {
		s.retire(g)
	}
}

// endReplacements forgets the starts that were to come.
func (s *Supervisor) endReplacements(g *generation) {
	for _, m := range g.members {
		m.timer.stop()
		m.timer, m.next = nil, time.Time{}
	}
}

func (s *Supervisor) stopWorkers(g *generation, grace time.Duration) {
	g.grace, g.handing = grace, false
	s.endReplacements(g)
	for w := range g.workers {
		s.workerEvent(w, wkStop)
	}
	s.settle(g)
}

// abandon ends a generation that was never current. The one that serves has
// not noticed anything.
func (s *Supervisor) abandon(g *generation) {
	g.handTimer.stop()
	if s.incoming == g {
		s.incoming = nil
	}
	if g.reason == nil {
		g.reason = ErrStopping
	}
	s.stopWorkers(g, abandonGrace)
	s.reconcile()
	if s.op != nil && s.op.gen == g {
		s.finishOp(g.reason)
	}
}

// settle notices that the last process of a generation is gone and none is to
// come.
func (s *Supervisor) settle(g *generation) {
	if g.alive > 0 || !slices.Contains(s.generations, g) {
		return
	}
	s.generationEvent(g, genEmpty)
}

// retire forgets a generation.
func (s *Supervisor) retire(g *generation) {
	g.timer.stop()
	g.handTimer.stop()
	s.endReplacements(g)
	if g.payload != nil {
		g.payload.Close()
	}
	g.image.release()
	g.self.release()
	s.removeGeneration(g)
	s.reconcile()
	if s.beside == g {
		s.beside = nil
	}
	if s.op != nil && s.op.waiting {
		s.prepare(s.op)
	}
	s.checkStopped()
}

// newest returns the draining generations, newest first.
func (s *Supervisor) draining() []*generation {
	var out []*generation
	for _, g := range slices.Backward(s.generations) {
		if g.state == GenerationDraining {
			out = append(out, g)
		}
	}
	return out
}

func errNotReady(limit time.Duration) error {
	return fmt.Errorf("%w: not ready within %v", ErrTimeout, limit)
}
