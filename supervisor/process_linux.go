package supervisor

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
)

// child is a real process, watched by its pidfd: readable once it has ended,
// whoever its parent is, and never the name of another process.
type child struct {
	pid   int
	pidfd *os.File

	mu     sync.Mutex // orders Signal before Reap: a reaped PID is another's
	reaped *exit
}

// startChild starts a worker. It inherits standard output and error, reads
// nothing, and gets the lifeline as descriptor 3; every other descriptor of
// this process is close-on-exec. It is not tied to this process's life.
//
// The soft limit of open files is the one that this process was started with:
// package syscall restores it in the child, and the Go runtime there raises
// it to the hard limit again, so every worker ends with the same limit, and
// what a worker starts sees the original one.
func startChild(c command, lifelineEnd *os.File) (process, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	return startProgram(c, []*os.File{null, os.Stdout, os.Stderr, lifelineEnd})
}

// startProgram starts a process whose descriptors are the files, from 0 on.
func startProgram(c command, files []*os.File) (process, error) {
	pid, err := start(c, files)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.name, err)
	}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		// Not reaped yet, so the number is still the child's.
		_ = unix.Kill(pid, unix.SIGKILL)
		_, _ = unix.Wait4(pid, nil, 0, nil)
		return nil, fmt.Errorf("watch %s: pidfd_open: %w", c.name, err)
	}
	p := &child{pid: pid, pidfd: os.NewFile(uintptr(fd), "pidfd")}
	for _, l := range []struct {
		what     string
		resource int
		max      uint64
	}{{"open files", unix.RLIMIT_NOFILE, c.noFile}, {"memory", unix.RLIMIT_DATA, c.memory}} {
		if l.max == 0 {
			continue
		}
		if err := setLimit(pid, l.resource, l.max, c.account); err != nil {
			_ = p.Signal(syscall.SIGKILL)
			p.Ended()
			p.Reap()
			p.Close()
			return nil, fmt.Errorf("set the limit of %s to %d: %w", l.what, l.max, err)
		}
	}
	return p, nil
}

// killGroup kills a child that has not been reaped and all that it started.
func killGroup(pid int) { _ = unix.Kill(-pid, unix.SIGKILL) }

// keepDescriptors makes everything that this process has open close-on-exec,
// such as what it inherited itself without knowing: a worker gets descriptors
// 0 to 3 and nothing else.
func keepDescriptors() error {
	err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	return os.NewSyscallError("close_range", err)
}

// start runs a program, confined if it is a worker.
func start(c command, files []*os.File) (pid int, err error) {
	if !c.confined {
		return forkExec(c, files)
	}
	if c.account.credential() != nil {
		defer keepDumpable()()
	}
	onOwnThread(func() {
		if err = confine(c.account.credential() != nil); err != nil {
			return
		}
		pid, err = forkExec(c, files)
		if errors.Is(err, syscall.EACCES) && c.open != "" {
			// A directory on the way may be closed to the user; the file
			// itself is not.
			c.path = c.open
			pid, err = forkExec(c, files)
		}
	})
	return pid, err
}

func forkExec(c command, files []*os.File) (int, error) {
	fds := make([]uintptr, len(files))
	for i, f := range files {
		raw, err := f.SyscallConn()
		if err != nil {
			return 0, err
		}
		// Control instead of Fd: Fd would make the description blocking, and
		// standard error may be shared with other programs.
		if err := raw.Control(func(fd uintptr) { fds[i] = fd }); err != nil {
			return 0, err
		}
	}
	defer runtime.KeepAlive(files)
	path, done, err := outOfTheWay(c.path, fds)
	if err != nil {
		return 0, err
	}
	defer done()
	defer freshSignals()()
	return syscall.ForkExec(path, append([]string{c.name}, c.args...), &syscall.ProcAttr{
		Env:   c.env,
		Files: fds,
		// Its own process group: Ctrl-C in a terminal reaches the supervisor
		// alone, which then ends the workers in order.
		Sys: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: c.orphaned, Credential: c.account.credential()},
	})
}

// outOfTheWay returns the path of a program such that the descriptors which the
// child gets don't take the number of the one that the path leads to: they are
// put in their places, from 0 on, before the program begins. syscall.ForkExec
// also uses numbers right above all of them meanwhile.
func outOfTheWay(path string, fds []uintptr) (string, func(), error) {
	number, found := strings.CutPrefix(path, ownDescriptors)
	if !found {
		return path, func() {}, nil
	}
	fd, err := strconv.Atoi(number)
	if err != nil {
		return path, func() {}, nil
	}
	above := int(slices.Max(fds)) + 2*len(fds) + 8
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, above)
	if err != nil {
		return "", nil, fmt.Errorf("keep the program's descriptor: %w", os.NewSyscallError("fcntl F_DUPFD_CLOEXEC", err))
	}
	return ownDescriptors + strconv.Itoa(dup), func() { unix.Close(dup) }, nil
}

// ownDescriptors is where a process finds its own descriptors by number.
const ownDescriptors = "/proc/self/fd/"

func (p *child) PID() int { return p.pid }

func (p *child) Ended() {
	raw, err := p.pidfd.SyscallConn()
	if err == nil {
		err = raw.Read(func(fd uintptr) bool {
			set := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, pollErr := unix.Poll(set, 0)
			return pollErr == nil && n > 0
		})
	}
	if err == nil || errors.Is(err, os.ErrClosed) {
		return
	}
	// No poller for pidfds (before Linux 5.3): wait in a thread.
	_ = unix.Waitid(unix.P_PID, p.pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
}

func (p *child) Reap() exit {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped != nil {
		return *p.reaped
	}
	var ws unix.WaitStatus
	var end exit
	for {
		pid, err := unix.Wait4(p.pid, &ws, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil && pid == p.pid {
			end = exitOf(syscall.WaitStatus(ws))
		}
		break
	}
	p.reaped = &end
	return end
}

func (p *child) Signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped != nil {
		return os.ErrProcessDone
	}
	raw, err := p.pidfd.SyscallConn()
	if err != nil {
		return err
	}
	var sendErr error
	if err := raw.Control(func(fd uintptr) {
		sendErr = unix.PidfdSendSignal(int(fd), sig, nil, 0)
	}); err != nil {
		return err
	}
	return sendErr
}

func (p *child) Close() { p.pidfd.Close() }

// reapOthers reaps every child that has ended, for a supervisor that runs as
// PID 1 and inherits the orphans of all. One of its own may be among them;
// the loop, which alone reaps, is told.
func reapOthers(reaped func(pid int, end exit)) {
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil || pid <= 0:
			return
		default:
			reaped(pid, exitOf(syscall.WaitStatus(ws)))
		}
	}
}

// workerCommand returns how to start a worker of a generation: what its Spec
// says, or its image with the argument "worker".
func workerCommand(img *image, spec *Spec) command {
	c := command{
		path: img.runnable(), name: img.path, args: []string{"worker"}, env: workerEnviron(os.Environ()), noFile: spec.NoFile,
		confined: true, account: spec.Account,
	}
	if len(spec.Command) > 0 {
		c.name, c.args = spec.Command[0], spec.Command[1:]
	}
	if a := spec.Account; a.credential() != nil {
		c.env = a.environ(c.env)
		if !img.script {
			c.open = img.byDescriptor()
		}
	}
	return c
}

// workerEnviron removes what is meant for the supervisor alone: a worker must
// not speak to the service manager in its name.
func workerEnviron(environ []string) []string {
	out := make([]string, 0, len(environ)+1)
	for _, e := range environ {
		name := envName(e)
		switch {
		case name == "NOTIFY_SOCKET", name == "FDSTORE", name == "MAINPID", name == "SYSTEMD_EXEC_PID",
			name == lifeline.Env, name == envWorkerOf,
			strings.HasPrefix(name, "WATCHDOG_"), strings.HasPrefix(name, "LISTEN_"):
		default:
			out = append(out, e)
		}
	}
	return append(out, lifeline.Env+"="+strconv.Itoa(lifeline.FD))
}

func envName(e string) string {
	name, _, _ := strings.Cut(e, "=")
	return name
}
