package supervisor

import (
	"os"
	"syscall"
	"time"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
	"github.com/holdfast-quic/holdfast/internal/notify"
)

// env is what the package asks of the operating system, so that tests can
// answer instead. Everything else that it uses is real in tests too: the
// segment, lifelines, queues, the admin socket.
type env struct {
	// start runs a program with the file as descriptor 3.
	start func(c command, lifeline *os.File) (process, error)
	// startCheck runs a program with the files as descriptors from 0 on.
	startCheck func(c command, files []*os.File) (process, error)
	// killGroup kills the process group of a child that has not been reaped.
	killGroup func(pid int)
	// find watches a process that another supervisor started at that time; see
	// adoptProcess.
	find func(pid int, startTime uint64) (process, error)
	// sender says which process sent the last message of a lifeline.
	sender func(c *lifeline.Conn) (lifeline.Credentials, bool)
	// bind opens one listening socket and returns the address that it got.
	bind func(network, address string, o socketOptions) (*os.File, string, error)
	// adopt sets a socket that the service manager passed as bind sets its own.
	adopt func(f *os.File, network string, o socketOptions) error
	// passed takes what the service manager has passed to this process, or,
	// with anyPID, to whatever process; and says what is wrong with the rest.
	passed func(anyPID bool) ([]*passedFile, []error)
	// tryBind reports ErrAddressInUse when another program holds the address.
	tryBind func(network, address string) error
	// socketUse returns the receive buffer of a socket in bytes, as it is asked
	// for, and how many packets the kernel has dropped on it.
	socketUse func(f *os.File) (receiveBuffer int, drops uint32, err error)
	// ipv6 returns why this host has no IPv6, or nil.
	ipv6 func() error
	// files returns how many descriptors this process has and may have.
	files func() (used, limit int, err error)
	// memory returns the tightest memory limit of this process's control
	// groups and its source, or 0 for none.
	memory func() (limit int64, source string)
	// monotonic is CLOCK_MONOTONIC in nanoseconds, the clock of the segment.
	monotonic func() int64
	// wall is the time of day.
	wall func() time.Time
	// reapOthers reaps children that nobody waits for (as PID 1) and hands on
	// the end of each.
	reapOthers func(reaped func(pid int, end exit))
	// workerOf reports whether a process was started as a worker of the
	// instance with that runtime directory, by whatever supervisor.
	workerOf func(pid int, runtimeDir string) bool
	getpid   func() int
	// manager returns what a service manager has set for this process.
	manager func() (notify.Environment, error)
	// bootID names the running kernel's boot: process IDs and start times of
	// another one mean nothing.
	bootID func() string
	// startTime is when a process was started, in clock ticks since boot; 0
	// when there is no such process.
	startTime func(pid int) uint64
	// look is the time between two looks at the workers' heartbeats.
	look time.Duration
	// verify is the time that a new program has to look at what it would
	// take over.
	verify time.Duration
	// settle is the first part of a probation.
	settle time.Duration
}

// command is how to start a worker.
type command struct {
	path   string   // of the file to run
	name   string   // that the process sees itself called by
	args   []string // without the name
	env    []string
	noFile uint64 // limit of open files; 0 = as inherited
	memory uint64 // limit of private memory in bytes; 0 = as inherited
	// orphaned is the signal that it gets when the thread that starts it ends;
	// 0 for none.
	orphaned syscall.Signal
	// confined takes all capabilities from it, and the ways to get any.
	confined bool
	// account is the user that it runs as; nil for this process's own.
	account *Account
	// open is another path of the same file, for a user that path is closed
	// to; empty for none.
	open string
}

// process is one started child.
type process interface {
	// PID of the child.
	PID() int
	// Ended waits until the child has ended. It does not reap it.
	Ended()
	// Reap returns how it ended. It is called once, by the loop.
	//
	// Preconditions: Ended has returned.
	Reap() exit
	// Signal sends a signal to this child, never to another process.
	Signal(sig syscall.Signal) error
	// Close frees the descriptor.
	Close()
}

// exit is how a process ended.
type exit struct {
	status int            // exit status; -1 when a signal ended it
	signal syscall.Signal // 0 when it exited
	known  bool
}

func (e exit) clean() bool { return e.known && e.signal == 0 && e.status == 0 }

// socketOptions are the options of a fresh listening socket.
type socketOptions struct {
	receiveBuffer int // bytes
	sendBuffer    int // bytes
	v6only        bool
	// granted is told the receive buffer that the kernel gave.
	granted func(receive int)
}

// timer is one pending timer of the loop. Its methods belong to the loop.
type timer struct {
	t    *time.Timer
	dead bool
}

// stop cancels the timer, even when it has fired and its event is on its way.
func (t *timer) stop() {
	if t != nil {
		t.dead = true
		t.t.Stop()
	}
}
