package worker

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
	"github.com/holdfast-quic/holdfast/shm"
)

// resumeTimeout bounds how long a supervisor may take to answer a worker that
// introduces itself. It hears all workers before it answers the first; one that
// dies meanwhile is known by the end of the connection.
const resumeTimeout = time.Minute

// tether ties a worker to its supervisor, and to the next one after that has
// gone. Everything that the worker was given it can give back, so the next
// supervisor needs nothing but the workers to go on.
type tether struct {
	mu   sync.Mutex
	conn *lifeline.Conn // the lifeline; of the last supervisor while there is none
	uid  int            // whom supervisors run as

	// Descriptors that are kept to be given back, or -1. Once released they are
	// not given back any more: lending guards all that introduce sends.
	lending                    sync.Mutex
	released                   bool
	segment, payload, handover int
	timeout                    time.Duration // the longest time without a supervisor; 0: without limit
	options                    Options
}

// newTether keeps duplicates of the segment and the payload, and of the handover
// socket unless that is nil. They stay the caller's.
func newTether(conn *lifeline.Conn, o Options, segment, payload, handover *os.File) (_ *tether, err error) {
	t := &tether{conn: conn, options: o, segment: -1, payload: -1, handover: -1}
	if handover == nil {
		return t, nil
	}
	defer func() {
		if err != nil {
			t.release()
		}
	}()
	peer, err := conn.Credentials()
	if err != nil {
		return nil, err
	}
	t.uid = peer.UID
	for _, keep := range []struct {
		fd   *int
		file *os.File
	}{{&t.segment, segment}, {&t.payload, payload}, {&t.handover, handover}} {
		if *keep.fd, err = dupFD(keep.file); err != nil {
			return nil, fmt.Errorf("keep what the next supervisor needs: %w", err)
		}
	}
	return t, nil
}

// current returns the lifeline.
func (t *tether) current() *lifeline.Conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.conn
}

func (t *tether) replace(conn *lifeline.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.conn.Close()
	t.conn = conn
}

// outlives reports whether the worker serves on when its supervisor has gone.
func (t *tether) outlives() bool { return t.handover >= 0 }

// send sends a message to the supervisor. An error means that there is none.
func (t *tether) send(m *lifeline.Message) error { return t.current().Send(m) }

func (t *tether) release() {
	t.lending.Lock()
	defer t.lending.Unlock()
	t.released = true
	for _, fd := range []*int{&t.segment, &t.payload, &t.handover} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
}

// awaitSupervisor serves on without a supervisor until there is the next one,
// and reports whether there is. Nothing of the service changes: the worker reads
// what it read, and forwards to whom it knows.
func (w *Worker) awaitSupervisor() bool {
	dup, err := unix.FcntlInt(uintptr(w.tether.handover), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		w.log.Error("cannot wait for another supervisor, stopping", zap.Error(os.NewSyscallError("fcntl F_DUPFD_CLOEXEC", err)))
		return false
	}
	file := os.NewFile(uintptr(dup), "handover")
	l, err := lifeline.NewHandover(file)
	file.Close()
	if err != nil {
		w.log.Error("cannot wait for another supervisor, stopping", zap.Error(err))
		return false
	}
	waits := make(chan struct{})
	defer close(waits)
	go func() {
		select {
		case <-w.ended:
		case <-waits:
		}
		l.Close()
	}()
	if w.tether.timeout > 0 {
		_ = l.SetDeadline(time.Now().Add(w.tether.timeout))
	}
	for {
		conn, err := l.Accept()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			w.log.Warn("no other supervisor has come in time, stopping", zap.Duration("orphan_timeout", w.tether.timeout))
			return false
		case errors.Is(err, io.EOF): // the worker has ended
			return false
		case err != nil:
			// Out of descriptors or memory, which may pass.
			w.log.Warn("cannot accept a supervisor", zap.Error(err))
			time.Sleep(acceptPause)
			continue
		}
		if err := w.resume(conn); err != nil {
			conn.Close()
			w.log.Warn("a supervisor was not taken; serving on without one", zap.Error(err))
			continue
		}
		return true
	}
}

// resume makes whoever has connected the supervisor, if both agree to it.
func (w *Worker) resume(conn *lifeline.Conn) error {
	peer, err := conn.Credentials()
	if err != nil {
		return err
	}
	if peer.UID != 0 && peer.UID != w.tether.uid {
		return fmt.Errorf("%w: process %d runs as user %d, not as user %d", ErrRefused, peer.PID, peer.UID, w.tether.uid)
	}
	if err := conn.SetDeadline(time.Now().Add(resumeTimeout)); err != nil {
		return err
	}
	m, err := w.introduce(conn)
	if err != nil {
		return err
	}
	answer, sent, err := conn.Recv()
	closeAll(sent)
	switch {
	case err != nil:
		return fmt.Errorf("no answer of process %d: %w", peer.PID, err)
	case answer.Kind == lifeline.KindRefuse:
		return fmt.Errorf("%w: %s", ErrRefused, answer.Refuse.Reason)
	case answer.Kind != lifeline.KindResumed:
		return fmt.Errorf("%w: %s", ErrProtocol, answer.Kind)
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	w.tether.replace(conn)
	w.log.Info("there is a supervisor again", zap.Int("pid", peer.PID))
	// What was said to nobody is said again. An error means that this one has
	// gone too, which the reader of the lifeline sees.
	if w.ready.Load() && !m.Ready {
		_ = conn.Send(&lifeline.Message{Kind: lifeline.KindReady})
	}
	if w.noncesAsked.Load() {
		w.wantNonces()
	}
	return nil
}

// introduce says what the worker is and gives back all that it was given.
func (w *Worker) introduce(conn *lifeline.Conn) (*lifeline.Resume, error) {
	t := w.tether
	t.lending.Lock()
	defer t.lending.Unlock()
	if t.released {
		return nil, errEnded
	}
	m := &lifeline.Resume{
		ProtocolMin: lifeline.ProtocolMin, ProtocolMax: lifeline.ProtocolMax,
		ABIMajor: shm.ABIMajor, ABIMinor: shm.ABIMinor,
		Version: t.options.Version, BuildID: t.options.BuildID, PID: os.Getpid(),
		Slot: w.welcome.Slot, Incarnation: w.welcome.Incarnation, Generation: w.welcome.Generation,
		ConfigHash: w.welcome.ConfigHash,
		Ready:      w.ready.Load(), Draining: w.orders.isDraining(), Stopping: w.orders.isStopping(),
		ReadersSeq: w.readersSeq.Load(),
	}
	image, err := ownImage()
	if err != nil {
		return nil, err
	}
	defer unix.Close(image)
	fds := []int{t.segment, t.payload, w.bell, t.handover, image}
	for slot, fd := range w.node.bells.all() {
		if slot != w.node.self.Slot {
			m.Peers = append(m.Peers, uint16(slot))
			fds = append(fds, fd)
		}
	}
	// This goroutine alone adds sockets and drops them; a dropped one is not
	// listed any more, though it may still be open.
	for _, l := range w.byID {
		l.mu.Lock()
		for _, s := range l.sockets() {
			m.Sockets = append(m.Sockets, s.info)
			fds = append(fds, s.fd)
		}
		l.mu.Unlock()
	}
	if err := conn.SendNumbers(&lifeline.Message{Kind: lifeline.KindResume, Resume: m}, fds); err != nil {
		return nil, err
	}
	return m, nil
}

// ownImage opens the program that this process runs, whatever has become of the
// file: for reading, or, if the worker's user may not read it, for running only.
func ownImage() (int, error) {
	const running = "/proc/self/exe"
	fd, err := unix.Open(running, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		fd, err = unix.Open(running, unix.O_PATH|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: running, Err: err}
	}
	return fd, nil
}

var errEnded = errors.New("the worker has ended")

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
