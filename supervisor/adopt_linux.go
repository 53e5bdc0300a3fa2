package supervisor

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// adoptProcess watches a process that this one may not have started. The pidfd
// is opened before the start time is read, so a number that was given to
// another process meanwhile is never taken for the first one's: whichever of the
// two the pidfd is of, the start time is that of the later one.
//
// os.ErrProcessDone says that the process is gone.
func adoptProcess(pid int, started uint64) (process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	switch {
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EINVAL):
		return nil, os.ErrProcessDone
	case err != nil:
		return nil, fmt.Errorf("watch process %d: pidfd_open: %w", pid, err)
	}
	p := &child{pid: pid, pidfd: os.NewFile(uintptr(fd), "pidfd")}
	if now := startTime(pid); now == 0 || started != 0 && now != started {
		p.Close()
		return nil, os.ErrProcessDone
	}
	return p, nil
}

// deadProcess is a process that ended when nobody watched.
type deadProcess int

func (p deadProcess) PID() int                  { return int(p) }
func (deadProcess) Ended()                      {}
func (deadProcess) Reap() exit                  { return exit{} }
func (deadProcess) Signal(syscall.Signal) error { return os.ErrProcessDone }
func (deadProcess) Close()                      {}

// unpolled returns f's description under a descriptor that Go's poller does not
// watch, and closes f. A file made of a descriptor that does not block gets into
// the poller, and then every packet of every client wakes this process. The
// description must not be made blocking for a moment either: workers use it.
func unpolled(f *os.File) (*os.File, error) {
	defer f.Close()
	number, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: os.DevNull, Err: err}
	}
	place := os.NewFile(uintptr(number), f.Name()) // of what blocks, so not watched
	raw, err := place.SyscallConn()
	if err != nil {
		place.Close()
		return nil, err
	}
	from, err := f.SyscallConn()
	if err != nil {
		place.Close()
		return nil, err
	}
	var dupErr error
	err = from.Control(func(old uintptr) {
		err := raw.Control(func(number uintptr) { dupErr = unix.Dup3(int(old), int(number), unix.O_CLOEXEC) })
		dupErr = errors.Join(dupErr, err)
	})
	if err = errors.Join(err, os.NewSyscallError("dup3", dupErr)); err != nil {
		place.Close()
		return nil, err
	}
	return place, nil
}
