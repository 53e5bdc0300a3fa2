package supervisor

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
	"github.com/holdfast-quic/holdfast/shm"
)

// maxOutbox bounds the messages that wait for a worker which does not read.
const maxOutbox = 4096

// worker is one process from start to end. It belongs to the loop, except for
// the goroutines that watch it.
type worker struct {
	gen         *generation
	member      *member
	slot        shm.SlotID
	incarnation shm.Incarnation
	state       workerState
	started     time.Time
	startTime   uint64 // of the process, by the kernel's account

	proc process
	// conn and out are nil as long as the worker of an earlier supervisor has
	// not introduced itself.
	conn  *lifeline.Conn
	out   *outbox
	quiet chan struct{} // closed when nothing more comes from conn

	readyTimer *timer
	graceTimer *timer
	graceEnd   time.Time // when that fires
	drained    bool      // it has said that it ends of itself, with nothing left to serve
	reason     error     // why it is no good, first cause
	base       tally     // of its slot, when it began
	protocol   int       // of the lifeline, as agreed

	sockets     map[socketKey]bool // that it has been sent
	peers       map[shm.SlotID]bool
	peersOpen   int // peers sent and not acknowledged
	pulse       pulse
	readers     readerSet
	unsure      bool   // what it reads is not known: it is told again
	readersSeq  uint64 // of the last one sent
	readersDone uint64 // of the last one acknowledged
	stopProbe   func()
	probing     bool // once more, on trial
}

func (w *worker) owner() shm.Owner { return shm.Owner{Slot: w.slot, Incarnation: w.incarnation} }

// welcomed reports whether the worker may be sent messages.
func (w *worker) welcomed() bool {
	return w.state >= workerWelcomed && w.state < workerKilled && w.out != nil && w.sockets != nil
}

// blame keeps the first reason that is given.
func (w *worker) blame(err error) {
	if w.reason == nil {
		w.reason = err
	}
}

// send never blocks. What is for a worker that has no lifeline is wanted of it
// again once it has one.
func (w *worker) send(m *lifeline.Message, files ...*os.File) {
	if w.out != nil {
		w.out.put(m, files)
	}
}

func (w *worker) fields() []zap.Field {
	return []zap.Field{
		zap.Uint32("generation", uint32(w.gen.id)), zap.Uint16("slot", uint16(w.slot)),
		zap.Uint32("incarnation", uint32(w.incarnation)), zap.Int("pid", w.proc.PID()),
	}
}

// spawn starts the process of a member.
func (s *Supervisor) spawn(g *generation, m *member) error {
	w := &worker{gen: g, member: m, started: time.Now(), incarnation: s.takeIncarnation()}
	if err := s.slots.take(w, g.mask()); err != nil {
		return err
	}
	if err := s.startProcess(w); err != nil {
		s.slots.reclaim(w)
		return err
	}
	w.startTime = s.env.startTime(w.proc.PID())
	w.base = slotTally(s.seg.Counters(w.slot))
	s.seg.Directory().SetPID(w.slot, w.proc.PID())
	m.w = w
	m.back.start(w.started)
	s.workers[w] = struct{}{}
	s.byPID[w.proc.PID()] = w
	g.alive++
	s.armReady(w, g.spec.ReadyTimeout)
	s.log.Info("worker started", w.fields()...)
	s.hub.publish("worker", workerNews{"started", g.id, w.slot, w.incarnation, w.proc.PID(), ""})
	return nil
}

// armReady bounds the time until the worker is ready by what is left of it.
func (s *Supervisor) armReady(w *worker, left time.Duration) {
	w.readyTimer.stop()
	w.readyTimer = s.after(left, func() {
		w.blame(errNotReady(w.gen.spec.ReadyTimeout))
		s.workerEvent(w, wkLate)
	})
}

// takeIncarnation numbers processes. Connection IDs hold the low 24 bits, of
// which 0 is nobody.
func (s *Supervisor) takeIncarnation() shm.Incarnation {
	if s.nextIncarnation&(1<<24-1) == 0 {
		s.nextIncarnation++
	}
	n := s.nextIncarnation
	s.nextIncarnation++
	return n
}

func (s *Supervisor) startProcess(w *worker) error {
	conn, childEnd, err := lifeline.Pair()
	if err != nil {
		return err
	}
	defer childEnd.Close()
	c := workerCommand(w.gen.image, w.gen.spec)
	c.env = append(c.env, envWorkerOf+"="+s.opt.RuntimeDir)
	if w.proc, err = s.env.start(c, childEnd); err != nil {
		conn.Close()
		return err
	}
	w.quiet = make(chan struct{})
	s.attach(w, conn)
	s.watchExit(w)
	return nil
}

// attach makes conn the lifeline of a worker that has none.
func (s *Supervisor) attach(w *worker, conn *lifeline.Conn) {
	w.conn = conn
	w.out = newOutbox(conn, func(err error) { s.post(silenceEvent{w, err}) })
	go func() {
		defer close(w.quiet)
		s.receive(w)
	}()
}

// watchExit posts the end of the worker's process.
func (s *Supervisor) watchExit(w *worker) {
	go func() {
		w.proc.Ended()
		// What the worker said last comes before the news of its end; unless
		// something that it started keeps the lifeline open, or it has none.
		select {
		case <-w.quiet:
		case <-time.After(lastWords):
		}
		s.post(exitEvent{w})
	}()
}

const (
	lastWords    = 200 * time.Millisecond
	silenceGrace = time.Second
)

var errLifelineClosed = errors.New("it closed its lifeline")

func (s *Supervisor) receive(w *worker) {
	for {
		m, files, err := w.conn.Recv()
		for _, f := range files {
			f.Close() // workers have nothing to hand over
		}
		if err != nil {
			if !errors.Is(err, lifeline.ErrMalformed) {
				err = errLifelineClosed
			}
			s.post(silenceEvent{w, err})
			return
		}
		s.post(messageEvent{w, m})
	}
}

// workerEvent looks up what the event means and does it.
func (s *Supervisor) workerEvent(w *worker, e workerEvent) {
	cell := workerNext(w.state, e)
	if cell.next != w.state {
		s.log.Debug("worker state", append(w.fields(), zap.Stringer("event", e), zap.Stringer("from", w.state), zap.Stringer("to", cell.next))...)
	}
	from := w.state
	w.state = cell.next
	g := w.gen
	if cell.do&toWelcome != 0 {
		s.welcome(w)
	}
	if cell.do&toRefuse != 0 {
		w.send(&lifeline.Message{Kind: lifeline.KindRefuse, Refuse: &lifeline.Refuse{Reason: oneLine(w.reason)}})
		s.startGrace(w, silenceGrace)
	}
	if cell.do&toProbe != 0 {
		w.readyTimer.stop()
		s.ready(w)
	}
	if cell.do&toServe != 0 {
		s.serving(w)
	}
	if cell.do&toDrain != 0 {
		s.seg.Directory().SetServing(w.slot, false)
		w.send(&lifeline.Message{Kind: lifeline.KindDrain, Drain: g.drainOrder()})
	}
	if cell.do&toUndrain != 0 {
		s.seg.Directory().SetServing(w.slot, true)
		w.send(&lifeline.Message{Kind: lifeline.KindUndrain})
	}
	if cell.do&toStop != 0 {
		s.seg.Directory().SetServing(w.slot, false)
		w.send(&lifeline.Message{Kind: lifeline.KindStop, Stop: &lifeline.Stop{Grace: g.grace}})
		s.startGrace(w, g.grace+killSlack)
	}
	if cell.do&toKill != 0 {
		w.readyTimer.stop()
		s.seg.Directory().SetServing(w.slot, false)
		s.kill(w)
	}
	if cell.do&toCrash != 0 {
		s.counts.crashes++
	}
	if cell.do&toReclaim != 0 {
		s.reclaim(w)
	}
	if cell.do&toLose != 0 {
		s.lost(w)
		if from == workerServing {
			s.crashed(w)
		}
	}
	if cell.next == workerGone {
		g.alive--
		s.settle(g)
	}
}

func (s *Supervisor) startGrace(w *worker, d time.Duration) {
	w.graceTimer.stop()
	w.graceEnd = time.Now().Add(d)
	w.graceTimer = s.after(d, func() { s.workerEvent(w, wkGraceOver) })
}

func (s *Supervisor) kill(w *worker) {
	if err := w.proc.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) && !errors.Is(err, syscall.ESRCH) {
		s.log.Error("kill worker", append(w.fields(), zap.Error(err))...)
	}
}

// outbox sends to one worker in order, in its own goroutine, so that a worker
// which does not read blocks nobody.
type outbox struct {
	mu     sync.Mutex
	queue  []letter
	wake   chan struct{}
	closed bool
	full   func(error)
}

type letter struct {
	m     *lifeline.Message
	files []*os.File
}

var errNotReading = errors.New("it does not read its lifeline")

func newOutbox(conn *lifeline.Conn, broken func(error)) *outbox {
	o := &outbox{wake: make(chan struct{}, 1), full: broken}
	go o.run(conn, broken)
	return o
}

// put never blocks. What no longer can be sent is dropped.
func (o *outbox) put(m *lifeline.Message, files []*os.File) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return
	}
	if len(o.queue) >= maxOutbox {
		o.closed = true
		go o.full(errNotReading)
		return
	}
	o.queue = append(o.queue, letter{m, files})
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closed {
		o.closed = true
		o.queue = nil
	}
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

func (o *outbox) take() ([]letter, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	letters := o.queue
	o.queue = nil
	return letters, !o.closed
}

func (o *outbox) run(conn *lifeline.Conn, broken func(error)) {
	for range o.wake {
		letters, open := o.take()
		for _, l := range letters {
			err := conn.Send(l.m, l.files...)
			switch {
			case errors.Is(err, lifeline.ErrTooLarge):
				broken(err)
				return
			case errors.Is(err, os.ErrClosed):
				// A socket that was retired before it was sent, and that the
				// worker is told to drop next. If it is the lifeline itself,
				// so is the rest.
			case err != nil:
				return // the other end is gone, which the receiver sees too
			}
		}
		if !open {
			return
		}
	}
}
