package supervisor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
	"github.com/holdfast-quic/holdfast/shm"
)

const (
	// verifyTimeout is how long a new program may look at what it would take
	// over. It reads a configuration and a few certificates.
	verifyTimeout = 10 * time.Second
	// verifyMemory is far above what that takes.
	verifyMemory = 1 << 30
	// maxRefusal bounds what is kept of what it says when it refuses, and
	// maxReason what is told of it unless it is about the configuration.
	maxRefusal = 64 << 10
	maxReason  = 1 << 10
	// maxVerdict bounds its answer, which holds a whole configuration with
	// certificates.
	maxVerdict = 64 << 20
	// refusalPatience is how long its last words may take after its end.
	refusalPatience = 200 * time.Millisecond

	// exitInvalidConfig is the exit status of a program that refuses the
	// configuration and nothing else.
	exitInvalidConfig = 3
)

// verdict is the answer of a program that is asked whether it can take an
// instance over.
type verdict struct {
	Version     string `json:"version"`
	BuildID     string `json:"build_id"`
	ABIMajor    uint32 `json:"abi_major"`
	ABIMinor    uint32 `json:"abi_minor"`
	StateOldest int    `json:"state_oldest"` // versions of the state document that it reads
	StateNewest int    `json:"state_newest"`
	// LowPorts says whether the program has CAP_NET_BIND_SERVICE, in whatever
	// way; nil: it does not say.
	LowPorts *bool `json:"low_ports,omitempty"`
	// Spec is the configuration as the program reads it, Payload included.
	Spec *Spec `json:"spec"`
}

// check is one run of a new program that looks at what it would take over.
type check struct {
	op     *operation
	path   string // of the program
	by     string // version of this one
	proc   process
	answer *os.File // where the verdict is to be
	words  *words   // what it says
	timer  *timer
	late   bool
}

// checkedEvent: the process of a check has ended.
type checkedEvent struct{ c *check }

func (e checkedEvent) handle(s *Supervisor) { s.checked(e.c) }

// startCheck runs the image of an upgrade beside everything else, with
//
//	0     nothing to read
//	1, 2  a pipe for its words
//	3     the state document, sealed
//	4     the segment
//	5     an empty file for the verdict
//
// and nothing else of ours. It ends with this process, and soon.
func (s *Supervisor) startCheck(op *operation, args []string) error {
	state, err := s.snapshot().encode()
	if err != nil {
		return err
	}
	document, err := sealedFile("holdfast-state", state)
	if err != nil {
		return err
	}
	defer document.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	answer, err := memoryFile("holdfast-verdict")
	if err != nil {
		return err
	}
	said, says, err := os.Pipe()
	if err != nil {
		answer.Close()
		return err
	}
	defer says.Close()
	c := &check{op: op, path: op.self.path, by: s.opt.Version, answer: answer, words: &words{from: said}}
	program := command{
		path: op.self.runnable(), name: op.self.path, args: args, env: verifyEnviron(os.Environ()),
		memory: verifyMemory, orphaned: syscall.SIGKILL,
	}
	started := make(chan error)
	s.background.Go(func() {
		// The signal of the end of its parent is that of the end of a thread.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var err error
		c.proc, err = s.env.startCheck(program, []*os.File{null, says, says, document, s.seg.File(), answer})
		started <- err
		if err == nil {
			c.proc.Ended()
			s.post(checkedEvent{c})
		}
	})
	if err := <-started; err != nil {
		said.Close()
		answer.Close()
		return fmt.Errorf("verify: %w", startHint(err))
	}
	s.checks[c.proc.PID()] = c
	c.words.listen()
	c.timer = s.after(s.env.verify, func() {
		c.late = true
		s.env.killGroup(c.proc.PID())
	})
	return nil
}

// startHint adds what the errors of execve mean that are no words of ours.
func startHint(err error) error {
	switch {
	case errors.Is(err, syscall.ETXTBSY):
		return fmt.Errorf("%w: it is still being written", err)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("%w: is its file system mounted noexec?", err)
	}
	return err
}

// verifyEnviron is the environment of a worker, with other descriptors than a
// lifeline.
func verifyEnviron(environ []string) []string {
	env := workerEnviron(environ)
	env = slices.DeleteFunc(env, func(e string) bool {
		return strings.HasPrefix(e, lifeline.Env+"=") || strings.HasPrefix(e, envVerify+"=")
	})
	return append(env, envVerify+"="+verifyMark)
}

// checked: the process has ended, and what it started ends with it.
func (s *Supervisor) checked(c *check) {
	pid := c.proc.PID()
	s.env.killGroup(pid)
	end, seen := s.reaped[pid]
	if !seen {
		end = c.proc.Reap()
	}
	delete(s.reaped, pid)
	delete(s.checks, pid)
	c.timer.stop()
	c.proc.Close()
	// The verdict and the last words may take a moment, which is not the
	// loop's.
	s.background.Go(func() {
		v, err := c.result(end, s.env.verify)
		c.answer.Close()
		s.post(verdictEvent{c, v, err})
	})
}

// verdictEvent: a check has come to a result.
type verdictEvent struct {
	c   *check
	v   *verdict
	err error
}

func (e verdictEvent) handle(s *Supervisor) { s.verified(e.c.op, e.v, e.err) }

// result reads what has come of a check.
func (c *check) result(end exit, limit time.Duration) (*verdict, error) {
	said := c.words.all()
	switch {
	case c.late:
		return nil, fmt.Errorf("%w: %s has not verified within %v", ErrTimeout, c.path, limit)
	case end.known && end.signal == 0 && end.status == exitInvalidConfig && said != "":
		return nil, configError{errors.New(said)}
	case !end.clean() && said == "":
		return nil, fmt.Errorf("%s can't take over from version %s: verification ended with %s and no word", c.path, c.by, end)
	case !end.clean():
		return nil, fmt.Errorf("%s can't take over from version %s: %s (%s)", c.path, c.by, shorten(said), end)
	}
	wire, err := io.ReadAll(io.LimitReader(io.NewSectionReader(c.answer, 0, maxVerdict), maxVerdict))
	if err != nil {
		return nil, fmt.Errorf("read the verdict of %s: %w", c.path, err)
	}
	v := new(verdict)
	if len(wire) == 0 || json.Unmarshal(wire, v) != nil || v.Spec == nil {
		// What is wrong with it might show a key.
		return nil, fmt.Errorf("%s can't take over from version %s: it ended without a verdict, as another program does, or a version before 0.2", c.path, c.by)
	}
	return v, nil
}

// acceptable reports why a verdict is none to go on with, whatever the program
// itself thinks of it.
func (s *Supervisor) acceptable(v *verdict) error {
	switch {
	case v.ABIMajor != shm.ABIMajor:
		return fmt.Errorf("%w: version %s has %d.%d, the running version %s has %d.%d: it takes a restart",
			shm.ErrABIVersion, v.Version, v.ABIMajor, v.ABIMinor, s.opt.Version, shm.ABIMajor, shm.ABIMinor)
	case v.StateNewest < documentNewest || v.StateOldest > documentNewest:
		return fmt.Errorf("version %s reads state of versions %d to %d, the running version %s writes %d: it takes a restart",
			v.Version, v.StateOldest, v.StateNewest, s.opt.Version, documentNewest)
	}
	return nil
}

func shorten(said string) string {
	if len(said) > maxReason {
		return said[:maxReason] + " …"
	}
	return said
}

// words collects what a process says, however much that is.
type words struct {
	from *os.File
	wg   sync.WaitGroup
	text []byte
}

func (w *words) listen() {
	w.wg.Go(func() {
		w.text, _ = io.ReadAll(io.LimitReader(w.from, maxRefusal))
		_, _ = io.Copy(io.Discard, w.from) // it must not wait for us
	})
}

// all returns what was said until now, without the name of the program in
// front of each line, and stops to listen.
func (w *words) all() string {
	// Something that it started may keep the pipe open for ever.
	_ = w.from.SetReadDeadline(time.Now().Add(refusalPatience))
	w.wg.Wait()
	w.from.Close()
	lines := bytes.Split(bytes.TrimSpace(w.text), []byte("\n"))
	for i, l := range lines {
		lines[i] = bytes.TrimPrefix(bytes.TrimSpace(l), []byte("holdfast: "))
	}
	return strings.ToValidUTF8(string(bytes.Join(lines, []byte("\n"))), "?")
}
