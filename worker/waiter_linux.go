package worker

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lingerTime bounds one wait of a lingering goroutine, and is the longest
	// sleep after which it lingers.
	lingerTime = 2 * time.Millisecond
	// lingerSpell is how long a goroutine lingers on and on before it goes to
	// Go's poller once. Go's monitor takes the processor from a goroutine that
	// has not been seen to give it up for 10 ms, and looks at it every 20 us
	// for a while after that.
	lingerSpell = 8 * time.Millisecond
)

// look is what a look at the sources came to.
type look uint8

const (
	found look = iota // something for the caller: no sleep
	quiet             // nothing
	// passing is nothing for the caller, who only passes on what it finds: no
	// goroutine of this process has anything to do because of it.
	passing
)

// waiter is the one place where a goroutine waits for all its sources: an
// epoll descriptor with sockets, the doorbell and a wake descriptor in it.
//
// There are two ways to wait. The usual one is to sleep in Go's poller, which
// watches an outer epoll descriptor with the sources' one in it. A goroutine
// that only passes packets on to other processes lingers instead: it waits in
// epoll_wait itself, so that a wake-up is one switch of threads and Go's
// scheduler has no part in it. Through the poller the same wake-up costs several
// switches, since the scheduler starts a second thread whenever a goroutine
// becomes ready. Lingering holds one of the scheduler's processors, so it is no
// way to wait while other goroutines of the process want to run; and it needs a
// second one, whose thread sees to the timers of both.
//
// While a goroutine lingers the outer descriptor is shut, or Go's poller would
// wake for every packet too. Opening it looks at the sources' state, so
// whatever came after the last look at them ends the sleep at once.
type waiter struct {
	file   *os.File // the outer descriptor, in Go's poller
	raw    syscall.RawConn
	outer  int // descriptor of file, valid until close
	ep     int // the sources
	wake   int // eventfd: a change of plan
	pollFn func(uintptr) bool

	// Belong to the waiting goroutine.
	try    func() look
	open   bool      // the outer descriptor passes events up
	slept  time.Time // begin of a sleep in Go's poller; zero: none since the last look
	linger bool      // the last sleep was a short one
	since  time.Time // begin of a spell of lingering; zero: there is none
	events [1]unix.EpollEvent
}

func newWaiter() (_ *waiter, err error) {
	w := &waiter{ep: -1, wake: -1}
	w.pollFn = w.poll
	if w.outer, err = newEpoll(); err != nil {
		return nil, err
	}
	w.file = os.NewFile(uintptr(w.outer), "epoll")
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
	if w.ep, err = newEpoll(); err != nil {
		return nil, err
	}
	if err := control(w.outer, unix.EPOLL_CTL_ADD, w.ep, 0); err != nil {
		return nil, err
	}
	if w.wake, err = newEventFD(); err != nil {
		return nil, err
	}
	if err := w.addEdge(w.wake); err != nil {
		return nil, err
	}
	return w, nil
}

func newEpoll() (int, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return -1, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(ep, true); err != nil {
		unix.Close(ep)
		return -1, fmt.Errorf("epoll descriptor: %w", err)
	}
	return ep, nil
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

func (w *waiter) control(op, fd int, events uint32) error { return control(w.ep, op, fd, events) }

func control(ep, op, fd int, events uint32) error {
	ev := unix.EpollEvent{Events: events, Fd: int32(fd)}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(ep, op, fd, &ev))
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

// wait calls try until it has found something, and sleeps between its calls.
// It returns an error only after close or past the deadline, which a lingering
// goroutine notices up to lingerSpell later.
func (w *waiter) wait(try func() look) error {
	w.try = try
	return w.raw.Read(w.pollFn)
}

// poll is wait as Go's poller sees it, whose state has been reset before the
// call: false lets the goroutine sleep there.
func (w *waiter) poll(uintptr) bool {
	if !w.slept.IsZero() {
		w.linger = time.Since(w.slept) < lingerTime
		w.slept = time.Time{}
	}
	for {
		outcome := w.try()
		if outcome == found {
			return true
		}
		if outcome == passing && w.mayLinger() && w.setOpen(false) {
			w.linger = w.waitBriefly()
			continue
		}
		w.slept, w.since = time.Now(), time.Time{}
		// It cannot fail on descriptors that are open; if it did, looking again
		// and again would still lose nothing.
		if w.setOpen(true) {
			return false
		}
	}
}

// mayLinger reports whether the next wait is a lingering one. At the begin of
// each spell it makes the scheduler start a thread, which ends up in Go's poller
// and fires the timers that come due meanwhile. There mostly is one, but not
// always: the scheduler counts on this thread to look for work before long, and
// under traffic that ends without a pause it would not.
func (w *waiter) mayLinger() bool {
	if !w.linger {
		return false
	}
	if w.since.IsZero() {
		if runtime.GOMAXPROCS(0) < 2 {
			return false
		}
		runtime.Gosched()
		w.since = time.Now()
	}
	return time.Since(w.since) < lingerSpell
}

// setOpen opens or shuts the way from the sources to Go's poller, and reports
// whether it is so now.
func (w *waiter) setOpen(open bool) bool {
	if w.open == open {
		return true
	}
	var events uint32
	if open {
		events = unix.EPOLLIN | unix.EPOLLET
	}
	if err := control(w.outer, unix.EPOLL_CTL_MOD, w.ep, events); err != nil {
		return false
	}
	w.open = open
	return true
}

// waitBriefly waits for an event in a plain system call, and reports false if
// none came in time.
func (w *waiter) waitBriefly() bool {
	n, err := unix.EpollWait(w.ep, w.events[:], int(lingerTime/time.Millisecond))
	return n > 0 || errors.Is(err, unix.EINTR)
}

// nudge makes a waiting goroutine try again.
func (w *waiter) nudge() { signalFD(w.wake) }

// close ends wait for good, and returns once nobody is in it. It must not run
// together with nudge, add or
// remove, and not twice.
func (w *waiter) close() error {
	err := w.file.Close()
	for _, fd := range []int{w.ep, w.wake} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	return err
}
