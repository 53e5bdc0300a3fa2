package supervisor

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// envExec names the descriptor of the manifest in the environment of a program
// that is to go on as the supervisor.
const envExec = "HOLDFAST_EXEC"

// manifest says what the descriptors are that a supervisor leaves to the
// program that it becomes. The names of the descriptors are part of the state
// document's version.
type manifest struct {
	State int            `json:"state"` // descriptor of the state document
	Files map[string]int `json:"files"` // descriptors by name
	// Previous is the program to go back to, by descriptor and path; 0: this
	// one has come back already.
	Previous     int    `json:"previous,omitempty"`
	PreviousPath string `json:"previous_path,omitempty"`
	// Fault is why the program that was to be the supervisor has given up.
	Fault string `json:"fault,omitempty"`
	// Signals had arrived and were not heard yet.
	Signals []int `json:"signals,omitempty"`
}

// execInto makes this process run another program, which goes on with the
// instance as it is. It returns only when that could not be done; nothing has
// changed then.
//
// The lifelines do not cross: each worker sees its own end, goes on as it is,
// and introduces itself to the new program, exactly as after a supervisor was
// killed.
//
// Preconditions: it is called by the loop, and op, if not nil, is under way.
func (s *Supervisor) execInto(img *image, _ *operation) error {
	wire, err := s.snapshot().encode()
	if err != nil {
		return err
	}
	state, err := sealedFile("holdfast-state", wire)
	if err != nil {
		return err
	}
	defer state.Close()
	s.admin.settle()
	// What waits to be heard would be gone with this program: signals are
	// heard by the next one, and all else it finds out anew.
	left := s.unheard()
	m := manifest{PreviousPath: s.self.path}
	for _, e := range left {
		if sig, ok := e.(signalEvent); ok {
			if n, ok := sig.sig.(syscall.Signal); ok {
				m.Signals = append(m.Signals, int(n))
			}
		}
	}
	err = m.exec(img, state, s.self, s.descriptors())
	go func() {
		for _, e := range left {
			s.post(e)
		}
	}()
	return err
}

// unheard takes the events that wait.
func (s *Supervisor) unheard() (left []event) {
	for {
		select {
		case e := <-s.events:
			left = append(left, e)
		case sig := <-s.opt.Signals:
			left = append(left, signalEvent{sig})
		default:
			return left
		}
	}
}

// exec runs a program in this process with all the descriptors. It returns when
// that was not possible.
func (m *manifest) exec(img *image, state *os.File, previous *image, files descriptors) (err error) {
	var numbers []int
	defer func() {
		for _, fd := range numbers {
			unix.CloseOnExec(fd)
		}
	}()
	pass := func(f *os.File) int {
		if err != nil {
			return 0
		}
		var fd int
		if fd, err = descriptor(f); err != nil {
			return 0
		}
		if _, err = unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			return 0
		}
		numbers = append(numbers, fd)
		return fd
	}
	m.State, m.Files = pass(state), make(map[string]int, len(files))
	for name, f := range files {
		m.Files[name] = pass(f)
	}
	if previous != nil {
		m.Previous = pass(previous.file)
	}
	if err != nil {
		return err
	}
	wire, err := json.Marshal(m)
	if err != nil {
		return err
	}
	list, err := sealedFile("holdfast-manifest", wire)
	if err != nil {
		return err
	}
	defer list.Close()
	number := pass(list)
	if err != nil {
		return err
	}
	env := make([]string, 0, len(os.Environ())+1)
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, envExec+"=") {
			env = append(env, e)
		}
	}
	env = append(env, envExec+"="+strconv.Itoa(number))
	defer holdSignals()()
	err = syscall.Exec(img.runnable(), append([]string{img.path}, os.Args[1:]...), env)
	return startHint(os.NewSyscallError("execve", err))
}

// supervised are the signals that a supervisor answers to.
var supervised = []unix.Signal{unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2, unix.SIGQUIT, unix.SIGTERM, unix.SIGINT, unix.SIGCHLD}

// holdSignals keeps signals waiting in the kernel until the next program catches
// them: before that they would end it. The returned function ends that.
func holdSignals() (release func()) {
	var set, was unix.Sigset_t
	for _, sig := range supervised {
		set.Val[(sig-1)/64] |= 1 << ((sig - 1) % 64)
	}
	runtime.LockOSThread()
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &set, &was); err != nil {
		return runtime.UnlockOSThread
	}
	return func() {
		_ = unix.PthreadSigmask(unix.SIG_SETMASK, &was, nil) // it was possible before
		runtime.UnlockOSThread()
	}
}

// freshSignals lets what is started hear all signals, whatever this process was
// started with: a program that has come by way of exec has some blocked.
func freshSignals() (release func()) {
	var none, was unix.Sigset_t
	runtime.LockOSThread()
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &none, &was); err != nil {
		return runtime.UnlockOSThread
	}
	return func() {
		_ = unix.PthreadSigmask(unix.SIG_SETMASK, &was, nil)
		runtime.UnlockOSThread()
	}
}

func (m *manifest) check() error {
	if m.State <= 2 {
		return fmt.Errorf("%w: no state", errDocument)
	}
	return nil
}
