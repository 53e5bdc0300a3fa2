package supervisor

import (
	"encoding/json"
	"io"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/holdfast-quic/holdfast/shm"
)

// fakeCheck is a new program that verifies, as a goroutine of this process.
type fakeCheck struct {
	r       *rig
	pid     int
	command command
	state   []byte
	abi     error // what it has against the segment
	says    *os.File
	answer  *os.File

	once  sync.Once
	end   exit
	ended chan struct{}
}

func (f *fakeCheck) PID() int                    { return f.pid }
func (f *fakeCheck) Ended()                      { <-f.ended }
func (f *fakeCheck) Reap() exit                  { return f.end }
func (f *fakeCheck) Signal(syscall.Signal) error { return nil }
func (f *fakeCheck) Close()                      {}

// exit ends the process, once.
func (f *fakeCheck) exit(e exit) {
	f.once.Do(func() {
		f.end = e
		f.says.Close()
		f.answer.Close()
		close(f.ended)
	})
}

// refuse ends it with a reason.
func (f *fakeCheck) refuse(status int, text string) {
	_, _ = f.says.WriteString(text)
	f.exit(exit{status: status, known: true})
}

// accept answers what the rig would load, after a change.
func (f *fakeCheck) accept(change func(v *verdict)) {
	spec, err := f.r.load()
	if err != nil {
		f.refuse(exitInvalidConfig, err.Error())
		return
	}
	v := &verdict{
		Version: "2", BuildID: "two", ABIMajor: shm.ABIMajor, ABIMinor: shm.ABIMinor,
		StateOldest: documentOldest, StateNewest: documentNewest, Spec: spec,
	}
	if change != nil {
		change(v)
	}
	wire, _ := json.Marshal(v)
	_, _ = f.answer.Write(wire)
	f.exit(exit{known: true})
}

func (r *rig) startCheck(c command, files []*os.File) (process, error) {
	own := make([]*os.File, len(files))
	for i, f := range files {
		fd, err := descriptor(f)
		if err != nil {
			return nil, err
		}
		if fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			return nil, err
		}
		own[i] = os.NewFile(uintptr(fd), f.Name())
	}
	f := &fakeCheck{r: r, command: c, says: own[2], answer: own[verifyAnswerFD], ended: make(chan struct{})}
	own[0].Close()
	own[1].Close()
	f.state, _ = io.ReadAll(io.NewSectionReader(own[verifyStateFD], 0, 1<<30))
	own[verifyStateFD].Close()
	if seg, err := shm.Attach(own[verifySegmentFD]); err != nil {
		f.abi = err
		own[verifySegmentFD].Close()
	} else {
		seg.Close()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nextPID++
	f.pid = r.nextPID
	r.checks = append(r.checks, f)
	if checker := r.checker; checker != nil {
		go checker(f)
	} else {
		go f.accept(nil)
	}
	return f, nil
}

func (r *rig) killGroup(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.checks {
		if f.pid == pid {
			go f.exit(exit{status: -1, signal: syscall.SIGKILL, known: true})
		}
	}
}

// exec stands for the end of this program and the start of the next, which
// finds all as it is.
func (r *rig) exec(img *image, op *operation) error {
	r.mu.Lock()
	execute := r.execute
	r.mu.Unlock()
	if execute != nil {
		if err := execute(img); err != nil {
			return err
		}
	}
	s := r.s
	s.self.release()
	s.self = img.hold()
	s.op = nil
	s.resumeOperation(op, "")
	return nil
}
