package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/holdfast-quic/holdfast/shm"
)

// sweepInterval and sweepRounds pace the search for expired table entries:
// each round looks at one part of the table.
const (
	sweepInterval = time.Second
	sweepRounds   = 30
)

// Supervisor runs one instance. Make it with New, run it once with Run.
type Supervisor struct {
	opt     Options
	env     *env
	log     *zap.Logger
	started time.Time

	events chan event
	done   chan struct{} // closed when the loop has ended

	// Everything below belongs to the loop.

	spec    *Spec // of the current generation, or of the first one to be
	seg     *shm.Segment
	keys    *keyring
	sockets *sockets
	slots   *slots
	inst    *instance
	state   stateFile
	admin   *admin
	hub     *hub
	notify  notifier
	store   fdStore
	kept    []*passedFile // out of the manager's store, other than sockets
	// background counts the goroutines that use the segment or call into the
	// program: probes, loads, checks.
	background sync.WaitGroup

	generations []*generation // in order of number, all that have not ended
	current     *generation   // accepts new connections; nil before the first
	canary      *generation   // accepts a share of them; nil: there is none
	beside      *generation   // was rolled back, and reads on until the current one does
	incoming    *generation   // on its way to current
	workers     map[*worker]struct{}
	byPID       map[int]*worker

	nextGeneration  shm.Generation
	nextIncarnation shm.Incarnation

	self    *image // the program that this process runs
	program string // the path that an upgrade looks at when none is named

	op            *operation   // under way
	queue         []*operation // that wait for their turn
	operations    []*operation // that can be asked about, by number
	lastOperation uint64
	lastReload    time.Time                             // start of the last one
	checks        map[int]*check                        // of new programs, by process
	probation     *probation                            // of the current generation; nil for none
	good          lastGood                              // as recorded
	execTo        func(img *image, op *operation) error // execInto, except in tests
	startTries    int
	startBack     backoff
	minTimer      *timer

	stopping stopKind
	stopped  error // result of Run, once finished
	finished bool

	queries     map[uint64]*connsQuery
	nextSeq     uint64
	sweepAt     int
	clocks      clocks       // at the last look
	reaped      map[int]exit // ends that the PID 1 reaper saw first
	counts      counts
	lastFailure *Failure
	stopWaiters []chan<- struct{}
	hinted      bool // the hint about socket buffers was given
}

// counts are the supervisor's own counters; they only grow.
type counts struct {
	reloadsOK, reloadsFailed, reloadsMerged    uint64
	upgradesOK, upgradesFailed, upgradesMerged uint64
	rollbacks                                  uint64
	crashes                                    uint64
}

// byName returns the counters by the names that the state document has for
// them.
func (c *counts) byName() map[string]*uint64 {
	return map[string]*uint64{
		"reloads_ok": &c.reloadsOK, "reloads_failed": &c.reloadsFailed, "reloads_merged": &c.reloadsMerged,
		"upgrades_ok": &c.upgradesOK, "upgrades_failed": &c.upgradesFailed, "upgrades_merged": &c.upgradesMerged,
		"rollbacks": &c.rollbacks, "crashes": &c.crashes,
	}
}

type stopKind uint8

const (
	stopNone stopKind = iota
	stopGraceful
	stopFast
)

// New returns a supervisor that has touched nothing yet.
func New(o Options) (*Supervisor, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	return newSupervisor(o, realEnv()), nil
}

func newSupervisor(o Options, e *env) *Supervisor {
	s := &Supervisor{
		opt: o, env: e, log: o.Log,
		events:  make(chan event, 64),
		done:    make(chan struct{}),
		workers: map[*worker]struct{}{}, byPID: map[int]*worker{},
		checks: map[int]*check{}, queries: map[uint64]*connsQuery{}, reaped: map[int]exit{},
		nextGeneration: 1, nextIncarnation: 1,
		hub: newHub(),
	}
	s.execTo = s.execInto
	s.sockets = &sockets{
		env: e, warned: map[string]bool{},
		ours: func(pid int) bool { return s.byPID[pid] != nil || pid == e.getpid() },
		warn: func(address string, err error) {
			s.log.Warn("address not served as configured", zap.String("address", address), zap.Error(err))
		},
	}
	return s
}

// Run runs the instance until it is stopped by a signal, by the admin API or
// by the end of ctx (a fast stop). It returns nil after an orderly stop;
// ErrRunning when another supervisor has the instance; ErrConfig for a
// configuration that can't be started; otherwise why the first generation
// never served.
func (s *Supervisor) Run(ctx context.Context) error {
	s.started = time.Now()
	defer close(s.done)
	s.takePassed()
	s.openNotify()
	restored, err := s.open()
	if err != nil {
		s.close()
		s.closeNotify(err)
		return err
	}
	s.startNotify()
	go s.watchSignals()
	stopWatch := context.AfterFunc(ctx, func() { s.post(stopEvent{stopFast}) })
	defer stopWatch()
	s.after(sweepInterval, s.sweep)
	s.after(s.env.look, s.watch)
	if restored != nil {
		s.goOn(restored)
	} else {
		first := unnumbered(OperationStart)
		first.spec = s.spec
		s.begin(first)
	}
	for !s.finished {
		(<-s.events).handle(s)
		if len(s.events) == 0 {
			s.keepState()
		}
	}
	s.close()
	s.closeNotify(s.stopped)
	return s.stopped
}

// open takes the instance, and makes what outlives the workers or takes it over
// from the supervisor before. Nothing is touched before the lock is held.
func (s *Supervisor) open() (_ *restorer, err error) {
	var lock *os.File
	if s.opt.Resume != nil {
		lock = s.opt.Resume.files.take(nameLock)
	}
	if s.inst, err = takeInstance(s.opt.RuntimeDir, s.env.getpid(), lock); err != nil {
		return nil, err
	}
	if err := keepDescriptors(); err != nil {
		s.log.Warn("workers may inherit descriptors that are not for them", zap.Error(err))
	}
	if s.self, err = ownImage(); err != nil {
		return nil, err
	}
	s.program = s.self.path
	before, err := s.findPredecessor()
	if err != nil {
		s.inst.keep = true
		return nil, err
	}
	if before != nil {
		r, err := s.takeOver(before)
		if !errors.Is(err, errNobodyAnswers) {
			return r, err
		}
		s.endAll(before)
	}
	return nil, s.openFresh()
}

// openFresh makes all that outlives the workers.
func (s *Supervisor) openFresh() error {
	spec, err := s.load()
	if err != nil {
		return err
	}
	s.spec = spec
	if err := s.inst.writePID(spec.PIDFile); err != nil {
		return err
	}
	geometry := spec.geometry()
	if err := checkMemory(s.env, spec, geometry); err != nil {
		return err
	}
	if s.seg, err = shm.Create(geometry); err != nil {
		return segmentError(geometry, err)
	}
	s.hintLanes(spec)
	s.hintMemory(spec)
	s.slots = newSlots(s.seg, s.log)
	return s.openRest(nil, "supervisor started")
}

// openRest opens what is the supervisor's own.
func (s *Supervisor) openRest(adminSocket *os.File, news string) (err error) {
	spec := s.spec
	s.slots.dir = s.inst.dir
	s.slots.sweepHandover()
	if s.keys, err = openKeys(spec, s.opt.StateDir, s.log); err != nil {
		return err
	}
	s.sockets.options = socketOptions{
		receiveBuffer: spec.SocketBuffers.Receive, sendBuffer: spec.SocketBuffers.Send,
		granted: func(got int) { s.hintBuffers(spec.SocketBuffers.Receive, got) },
	}
	if s.admin, err = openAdmin(s, s.inst.adminPath(), adminSocket); err != nil {
		return err
	}
	s.state.path = filepath.Join(s.inst.dir, stateName)
	s.log.Info(news, zap.Int("pid", s.env.getpid()), zap.String("version", s.opt.Version),
		zap.String("runtime_dir", s.opt.RuntimeDir), zap.String("config", spec.ConfigPath))
	return nil
}

// takeOver goes on with the workers of the supervisor before this one. With an
// error they serve on as they are.
func (s *Supervisor) takeOver(before *predecessor) (r *restorer, err error) {
	s.inst.keep = true
	if r, err = s.restore(before); err != nil {
		return nil, s.leave(before, err)
	}
	if err := s.inst.writePID(s.spec.PIDFile); err != nil {
		return nil, s.leave(before, err)
	}
	if err := s.openRest(before.given.take(nameAdmin), "supervisor took over"); err != nil {
		s.slots.dir = "" // their handover sockets stay
		return nil, s.leave(before, err)
	}
	if left := before.given.close(); len(left) > 0 {
		s.log.Debug("descriptors that nothing needs", zap.Strings("names", left))
	}
	s.inst.keep = false
	return r, nil
}

// leave gives back what was taken of the workers, which serve on.
func (s *Supervisor) leave(before *predecessor, err error) error {
	for _, a := range before.early {
		a.close("")
	}
	before.given.close()
	if errors.Is(err, errNobodyAnswers) {
		return err
	}
	return fmt.Errorf("%d workers serve on without a supervisor and can't be taken over: %w", len(before.processes), err)
}

// endAll kills the workers of a supervisor before this one that can't be
// reached any more.
func (s *Supervisor) endAll(before *predecessor) {
	s.log.Error("the workers of the supervisor before do not answer; they are killed, and others are started", zap.Int("workers", len(before.processes)))
	for _, proc := range before.processes {
		if err := proc.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) && !errors.Is(err, syscall.ESRCH) {
			s.log.Error("kill worker", zap.Int("pid", proc.PID()), zap.Error(err))
			continue
		}
		proc.Ended()
		proc.Close()
	}
	s.inst.keep = false
}

// close gives back everything, in the reverse order.
func (s *Supervisor) close() {
	s.hub.close()
	s.drainEvents(func() {
		if s.admin != nil {
			s.admin.close()
		}
		s.background.Wait()
	})
	for _, l := range s.sockets.all() {
		s.sockets.forget(l)
	}
	s.closePassed()
	if s.slots != nil {
		s.slots.close()
	}
	if s.seg != nil {
		if err := s.seg.Close(); err != nil {
			s.log.Error("close the segment", zap.Error(err))
		}
	}
	s.endProbation()
	s.self.release()
	if s.inst != nil {
		s.inst.release()
	}
}

// drainEvents goes on answering requests while f waits for the handlers that
// made them.
func (s *Supervisor) drainEvents(f func()) {
	over := make(chan struct{})
	go func() {
		defer close(over)
		f()
	}()
	for {
		select {
		case e := <-s.events:
			if r, ok := e.(requestEvent); ok {
				r.handle(s)
			}
		case <-over:
			return
		}
	}
}

// load calls Options.Load and checks what it returned.
func (s *Supervisor) load() (*Spec, error) {
	spec, err := s.opt.Load()
	if err != nil {
		return nil, configError{err}
	}
	spec, err = spec.withDefaults()
	if err != nil {
		return nil, configError{err}
	}
	return spec, nil
}

// hintBuffers tells once per start what an operator can do about small socket
// buffers.
func (s *Supervisor) hintBuffers(wanted, got int) {
	if s.hinted || got >= wanted {
		return
	}
	s.hinted = true
	s.log.Warn("UDP receive buffers are smaller than wanted; bursts may be lost",
		zap.Int("wanted", wanted), zap.Int("got", got), zap.String("hint", fmt.Sprintf("sysctl -w net.core.rmem_max=%d", wanted)))
}

// hintLanes says that the segment, whose size is fixed, has fewer lanes than spec
// may need.
func (s *Supervisor) hintLanes(spec *Spec) {
	if want, got := spec.lanesNeeded(), s.seg.Geometry().Lanes; got < want {
		s.log.Warn("queues have fewer lanes than this many workers and listeners may need; clients that change address may lose packets",
			zap.Int("wanted", want), zap.Int("got", got), zap.String("hint", "fewer workers, a smaller queue.lane_size, or a restart"))
	}
}

// segmentError says what the system's error means for a segment.
func segmentError(g shm.Geometry, err error) error {
	if hint := segmentHint(err); hint != "" {
		return fmt.Errorf("create the segment of %d bytes: %w: %s", g.Size(), err, hint)
	}
	return fmt.Errorf("create the segment of %d bytes: %w", g.Size(), err)
}

// fail notes a failure for status.
func (s *Supervisor) fail(what string, err error) {
	s.lastFailure = &Failure{When: time.Now(), What: what, Reason: oneLine(err)}
	s.hub.publish("failure", s.lastFailure)
}
