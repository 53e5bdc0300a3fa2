package worker

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// waiter is the one place where a goroutine waits for all its sources: an
// epoll descriptor, itself watched by Go's poller, with sockets, the doorbell
// and a wake descriptor in it.
//
// Go's poller is edge-triggered, and the kernel passes every event on a source
// up as an event of the epoll descriptor. The poller's state is reset before
// the first look at the sources, so whatever arrives after that look ends the
// sleep; nothing has to be read from the epoll descriptor for that.
type waiter struct {
	file *os.File
	raw  syscall.RawConn
	ep   int // descriptor of file, valid until close
	wake int // eventfd: a change of plan
}

func newWaiter() (_ *waiter, err error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(ep, true); err != nil {
		unix.Close(ep)
		return nil, fmt.Errorf("epoll descriptor: %w", err)
	}
	w := &waiter{file: os.NewFile(uintptr(ep), "epoll"), ep: ep, wake: -1}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	if w.raw, err = w.file.SyscallConn(); err != nil {
		return nil, err
	}
	// Fails unless the descriptor has got into Go's poller.
	if err := w.file.SetReadDeadline(time.Time{}); err != nil {
		return nil, fmt.Errorf("watch epoll descriptor: %w", err)
	}
	if w.wake, err = newEventFD(); err != nil {
		return nil, err
	}
	if err := w.addEdge(w.wake); err != nil {
		return nil, err
	}
	return w, nil
}

// add watches a socket, which may be readable already.
func (w *waiter) add(fd int) error { return w.control(unix.EPOLL_CTL_ADD, fd, unix.EPOLLIN) }

// addEdge watches an eventfd that nobody reads: each write to it is an event.
func (w *waiter) addEdge(fd int) error {
	return w.control(unix.EPOLL_CTL_ADD, fd, unix.EPOLLIN|unix.EPOLLET)
}

// remove stops watching. A descriptor that was never added is no error.
func (w *waiter) remove(fd int) error {
	err := w.control(unix.EPOLL_CTL_DEL, fd, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

func (w *waiter) control(op, fd int, events uint32) error {
	ev := unix.EpollEvent{Events: events, Fd: int32(fd)}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(w.ep, op, fd, &ev))
}

// ready stores in events which sources have something. It is worth its system
// call only when there are several sockets to try.
func (w *waiter) ready(events []unix.EpollEvent) []unix.EpollEvent {
	n, err := unix.EpollWait(w.ep, events, 0)
	if err != nil {
		return nil
	}
	return events[:n]
}

// wait calls try until it returns true, and sleeps between its calls. It
// returns an error only after close or past the deadline.
func (w *waiter) wait(try func(uintptr) bool) error { return w.raw.Read(try) }

// nudge makes a waiting goroutine try again.
func (w *waiter) nudge() { signalFD(w.wake) }

// close ends wait for good. It must not run together with nudge.
func (w *waiter) close() error {
	if w.wake >= 0 {
		unix.Close(w.wake)
		w.wake = -1
	}
	return w.file.Close()
}
