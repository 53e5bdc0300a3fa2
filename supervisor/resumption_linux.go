package supervisor

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// healthTimeout is how long a program that has become the supervisor may
	// take to show that it is one.
	healthTimeout = 5 * time.Second
	// healthPatience is how long it waits for its workers for that; one may
	// hang without any fault of the program's.
	healthPatience = 2 * time.Second
	healthLook     = 20 * time.Millisecond
)

// namePrevious is the name of the program before among the descriptors.
const namePrevious = "previous"

// Resumption is what a program gets that becomes the supervisor in the process
// of another one: state, descriptors, and the way back. As long as it has not
// been healthy, all that goes wrong leads back to the program before, in the
// same process.
//
// Its methods may be called on nil, from any goroutine.
type Resumption struct {
	state []byte
	files descriptors
	fault string

	mu       sync.Mutex
	previous *image      // nil: there is no way back
	spare    descriptors // of the way back
	kept     *os.File    // the state, for the way back
	timer    *time.Timer
}

// Resume returns what the supervisor that this process was so far has left, or
// nil. It is to be called once, as the first thing after CatchSignals.
func Resume() (*Resumption, error) {
	text := os.Getenv(envExec)
	if text == "" {
		return nil, nil
	}
	if err := os.Unsetenv(envExec); err != nil { // it is not for children
		return nil, err
	}
	m, err := readManifest(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", envExec, err)
	}
	r := &Resumption{files: descriptors{}, spare: descriptors{}, fault: m.Fault}
	if m.Previous > 0 {
		// The program of this supervisor may be that of a generation too.
		m.Files[namePrevious] = m.Previous
	}
	if err := r.own(m.Files); err != nil {
		return nil, err
	}
	r.kept = os.NewFile(uintptr(m.State), "state")
	unix.CloseOnExec(m.State)
	if previous := r.files.take(namePrevious); previous != nil {
		if err := r.arm(m.PreviousPath, previous); err != nil {
			return nil, err
		}
	}
	if r.state, err = readWhole(r.kept); err != nil {
		r.Return(fmt.Errorf("read the state: %w", err))
		return nil, err
	}
	for _, sig := range m.Signals {
		_ = syscall.Kill(os.Getpid(), syscall.Signal(sig))
	}
	return r, nil
}

// own takes the descriptors. One may have several names, as the program of
// several generations; each name gets a descriptor of its own.
func (r *Resumption) own(numbers map[string]int) error {
	taken := map[int]*os.File{}
	for name, fd := range numbers {
		if first := taken[fd]; first != nil {
			again, err := duplicate(first)
			if err != nil {
				return err
			}
			r.files[name] = again
			continue
		}
		unix.CloseOnExec(fd)
		taken[fd] = os.NewFile(uintptr(fd), name)
		r.files[name] = taken[fd]
	}
	return nil
}

func readManifest(text string) (*manifest, error) {
	fd, err := strconv.Atoi(text)
	if err != nil || fd <= 2 {
		return nil, fmt.Errorf("found %q, expected a descriptor", text)
	}
	f := os.NewFile(uintptr(fd), "manifest")
	defer f.Close()
	wire, err := readWhole(f)
	if err != nil {
		return nil, err
	}
	m := &manifest{}
	if err := json.Unmarshal(wire, m); err != nil {
		return nil, err
	}
	return m, m.check()
}

// arm prepares the way back: the same descriptors once more, since those that
// are used may be closed by then.
func (r *Resumption) arm(path string, previous *os.File) error {
	for name, f := range r.files {
		again, err := duplicate(f)
		if err != nil {
			return err
		}
		r.spare[name] = again
	}
	img, err := newImage(path, previous)
	if err != nil {
		return err
	}
	r.previous = img
	r.timer = time.AfterFunc(healthTimeout, func() {
		r.Return(fmt.Errorf("%w: not healthy within %v", ErrTimeout, healthTimeout))
	})
	return nil
}

// duplicate returns another descriptor of the same open file, as it is.
func duplicate(f *os.File) (*os.File, error) {
	fd, err := descriptor(f)
	if err != nil {
		return nil, err
	}
	if fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3); err != nil {
		return nil, os.NewSyscallError("fcntl F_DUPFD_CLOEXEC", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// Return makes this process the program before, which goes on with the state
// that it has left, unless this one has been healthy. It returns when there is no
// way back.
func (r *Resumption) Return(why error) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.previous == nil {
		return
	}
	m := manifest{Fault: oneLine(why)}
	if err := m.exec(r.previous, r.kept, nil, maps.Clone(r.spare)); err != nil {
		fmt.Fprintf(os.Stderr, "holdfast: %s; and the way back is closed: %v\n", oneLine(why), err)
	}
}

// healthy closes the way back.
func (r *Resumption) healthy() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.timer != nil {
		r.timer.Stop()
	}
	r.previous.release()
	r.previous = nil
	r.spare.close()
	if r.kept != nil {
		r.kept.Close()
		r.kept = nil
	}
}

// awaitHealth ends the operation that has brought this program about once the
// program is at work: the loop runs, and the workers of the current generation
// have introduced themselves.
func (s *Supervisor) awaitHealth(op *operation, since time.Time) {
	if s.stopping == stopNone && s.current != nil && time.Since(since) < healthPatience &&
		!s.current.every(func(w *worker) bool { return w.conn != nil }) {
		s.after(healthLook, func() { s.awaitHealth(op, since) })
		return
	}
	s.opt.Resume.healthy()
	if op != nil && s.op == op {
		s.resumeOperation(op, "")
	}
}
