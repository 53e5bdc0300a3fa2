package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
	"github.com/holdfast-quic/holdfast/shm"
)

const (
	// answerTimeout is how long the workers of a supervisor that was killed
	// have to introduce themselves before they count as hung.
	answerTimeout = 5 * time.Second
	// answerPatience is how long the start waits for more of them once one has.
	answerPatience = time.Second
	// dismissGrace is what workers have to say goodbye that belong to nothing
	// which is known.
	dismissGrace = 5 * time.Second
)

// predecessor is what a supervisor finds of the one before it.
type predecessor struct {
	doc *document
	// given are the descriptors that came with the process, by an exec or from
	// the service manager.
	given descriptors
	exec  bool   // this process has been the supervisor all along
	fault string // why the program that it was to become gave up; "" if none
	// processes of the document that live.
	processes map[shm.Incarnation]process
	asked     int // workers that were reached
	answers   chan *answer
	early     []*answer // that came before the restore
}

// answer is a worker that introduced itself, or why there is none.
type answer struct {
	slot  shm.SlotID
	conn  *lifeline.Conn
	m     *lifeline.Resume
	files []*os.File
	err   error
}

// close refuses the worker: it serves on without a supervisor.
func (a *answer) close(reason string) {
	for _, f := range a.files {
		f.Close()
	}
	a.files = nil
	if a.conn == nil {
		return
	}
	if reason != "" {
		_ = a.conn.Send(&lifeline.Message{Kind: lifeline.KindRefuse, Refuse: &lifeline.Refuse{Reason: reason}})
	}
	a.conn.Close()
	a.conn = nil
}

// Descriptors that come with every Resume, in this order.
const (
	resumeSegment = iota
	resumePayload
	resumeDoorbell
	resumeHandover
	resumeImage
	resumeFixed
)

// introduce waits until the worker introduces itself. It accepts as soon as it
// has noticed that its supervisor is gone.
func (a *answer) introduce(sender func(*lifeline.Conn) (lifeline.Credentials, bool)) {
	m, files, err := a.conn.Recv()
	a.files = files
	from, known := sender(a.conn)
	switch {
	case err != nil:
		a.err = err
	case m.Kind != lifeline.KindResume:
		a.err = fmt.Errorf("%w: %s instead of an introduction", errProtocol, m.Kind)
	case known && from.PID != m.Resume.PID:
		a.err = fmt.Errorf("%w: process %d calls itself %d", errProtocol, from.PID, m.Resume.PID)
	case len(files) != resumeFixed+len(m.Resume.Peers)+len(m.Resume.Sockets):
		a.err = fmt.Errorf("%w: %d descriptors with %d doorbells and %d sockets", errProtocol, len(files), len(m.Resume.Peers), len(m.Resume.Sockets))
	case shm.SlotID(m.Resume.Slot) != a.slot:
		a.err = fmt.Errorf("%w: a worker of slot %d", errProtocol, m.Resume.Slot)
	default:
		a.m = m.Resume
		return
	}
	a.close("")
}

// findPredecessor looks for an instance that lives on without a supervisor. Nil
// says that there is none. Nothing has been touched when it returns an error.
func (s *Supervisor) findPredecessor() (*predecessor, error) {
	r := s.opt.Resume
	var doc *document
	var err error
	if r != nil {
		doc, err = decodeDocument(r.state)
	} else {
		doc, err = readState(s.inst.dir)
	}
	switch {
	case r != nil && err != nil:
		return nil, err
	case errors.Is(err, fs.ErrNotExist):
	case errors.Is(err, errNewerDocument):
		if n := Living(s.inst.dir); n > 0 {
			return nil, fmt.Errorf("%w; %d workers serve on: start that version", err, n)
		}
		s.log.Warn("what a supervisor left is not used", zap.Error(err))
	case err != nil:
		s.log.Warn("what a supervisor left is not used", zap.Error(err))
	case doc.BootID != s.env.bootID():
		s.log.Info("what a supervisor left is of an earlier boot of this host")
		doc = nil
	}
	p := &predecessor{doc: doc, given: descriptors{}, processes: map[shm.Incarnation]process{}}
	if r != nil {
		p.given, p.exec, p.fault = r.files, true, r.fault
	}
	if err := s.findProcesses(p); err != nil {
		return nil, err
	}
	if doc == nil || len(p.processes) == 0 {
		s.dismissAll(p)
		p.given.close()
		return nil, nil
	}
	s.await(p)
	return p, nil
}

// findProcesses finds out which processes of the document live, and asks all
// that can be asked to introduce themselves.
func (s *Supervisor) findProcesses(p *predecessor) error {
	if p.doc != nil {
		for _, g := range p.doc.Generations {
			for _, w := range g.Workers {
				proc, err := s.env.find(w.PID, w.StartTime)
				switch {
				case errors.Is(err, os.ErrProcessDone):
				case err != nil:
					return err
				default:
					p.processes[w.Incarnation] = proc
				}
			}
		}
	}
	slots := handoverSlots(s.inst.dir)
	p.answers = make(chan *answer, len(slots)) // nobody waits to send
	for _, slot := range slots {
		conn, err := lifeline.Dial(handoverPath(s.inst.dir, slot))
		if err != nil {
			s.log.Debug("nobody listens", zap.Uint16("slot", uint16(slot)), zap.Error(err))
			continue
		}
		p.asked++
		go func() {
			a := &answer{slot: slot, conn: conn}
			a.introduce(s.env.sender)
			p.answers <- a
		}()
	}
	return nil
}

// await waits until the workers have introduced themselves that are going to.
func (s *Supervisor) await(p *predecessor) {
	deadline := time.After(answerTimeout)
	good := 0
	for len(p.early) < p.asked {
		select {
		case a := <-p.answers:
			p.early = append(p.early, a)
			if a.err != nil {
				s.log.Warn("a worker does not introduce itself", zap.Uint16("slot", uint16(a.slot)), zap.Error(a.err))
				continue
			}
			if good++; good == 1 {
				deadline = time.After(answerPatience)
			}
		case <-deadline:
			return
		}
	}
}

// dismissAll ends workers that belong to nothing which is known: they hold the
// addresses, and nobody could steer or replace them.
func (s *Supervisor) dismissAll(p *predecessor) {
	if p.asked == 0 {
		return
	}
	s.log.Warn("workers live that nothing is known of; they are told to end", zap.Int("workers", p.asked), zap.Duration("grace", dismissGrace))
	deadline := time.After(answerTimeout)
	var left []process
	for range p.asked {
		select {
		case a := <-p.answers:
			if proc := s.dismiss(a); proc != nil {
				left = append(left, proc)
			}
		case <-deadline:
		}
	}
	over := time.AfterFunc(dismissGrace+killSlack, func() {
		for _, proc := range left {
			_ = proc.Signal(syscall.SIGKILL) // has ended at last
		}
	})
	defer over.Stop()
	for _, proc := range left {
		proc.Ended()
	}
	for _, proc := range left {
		proc.Close()
	}
}

// dismiss tells one worker to end and returns its process, if it can be told
// which it is.
func (s *Supervisor) dismiss(a *answer) process {
	if a.err != nil {
		return nil
	}
	defer a.close("")
	protocol, err := lifeline.NegotiateResume(a.m)
	if err != nil || !s.env.workerOf(a.m.PID, s.opt.RuntimeDir) {
		return nil
	}
	proc, err := s.env.find(a.m.PID, 0)
	if err != nil {
		return nil
	}
	for _, m := range []*lifeline.Message{
		{Kind: lifeline.KindResumed, Resumed: &lifeline.Resumed{Protocol: protocol}},
		{Kind: lifeline.KindStop, Stop: &lifeline.Stop{Grace: dismissGrace}},
	} {
		if a.conn.Send(m) != nil {
			break // it ends already
		}
	}
	return proc
}
