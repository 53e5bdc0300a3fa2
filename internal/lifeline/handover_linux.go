package lifeline

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// backlog is more than the supervisors that can be there at once.
	backlog = 4
	// longestPath is what fits the address of a Unix socket.
	longestPath = 107
)

// Credentials are those of a process at the other end of a lifeline, by the
// word of the kernel.
type Credentials struct {
	PID int // as this process sees it; 0: in a PID namespace that it does not see
	UID int // effective
}

// Listen opens the handover socket of a worker: where the worker, once it has
// lost its supervisor, accepts the next one. The worker gets the descriptor and
// needs no right to the path, whose length does not matter. The socket does not
// block and is close-on-exec, and the file stays out of Go's poller.
//
// Whatever is at path gives way.
//
// Preconditions: no living process listens on path, and nobody else may write to
// its directory or search it.
func Listen(path string) (*os.File, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open handover socket: %w", err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open handover socket: %w", os.NewSyscallError("socket", err))
	}
	f := os.NewFile(uintptr(fd), path) // blocking as yet, so not watched
	if err := listen(fd, path); err != nil {
		f.Close()
		return nil, fmt.Errorf("open handover socket: %w", err)
	}
	return f, nil
}

func listen(fd int, path string) error {
	err := shortly(path, func(short string) error {
		return unix.Bind(fd, &unix.SockaddrUnix{Name: short})
	})
	if err != nil {
		return &os.PathError{Op: "bind", Path: path, Err: err}
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return err
	}
	if err := unix.Listen(fd, backlog); err != nil {
		return &os.PathError{Op: "listen", Path: path, Err: err}
	}
	return os.NewSyscallError("fcntl O_NONBLOCK", unix.SetNonblock(fd, true))
}

// shortly calls use with a path that fits the address of a socket: path itself,
// or one that leads through a descriptor of its directory.
func shortly(path string, use func(short string) error) error {
	if len(path) <= longestPath {
		return use(path)
	}
	dir, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return use(filepath.Join("/proc/self/fd", strconv.Itoa(dir), filepath.Base(path)))
}

// Dial connects to the handover socket of a worker. The connection waits until
// the worker has lost its supervisor and accepts it; the worker speaks first.
// Its error wraps [syscall.ECONNREFUSED] or [fs.ErrNotExist] when nobody listens
// there any more, and [syscall.EAGAIN] when too many wait to be accepted.
func Dial(path string) (*Conn, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open lifeline: %w", os.NewSyscallError("socket", err))
	}
	// Of whoever connected, the kernel knows who listened: the former
	// supervisor. The worker's own credentials come with its messages.
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("open lifeline: %w", os.NewSyscallError("setsockopt SO_PASSCRED", err))
	}
	err = shortly(path, func(short string) error {
		return unix.Connect(fd, &unix.SockaddrUnix{Name: short})
	})
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("open lifeline: %w", &os.PathError{Op: "connect", Path: path, Err: err})
	}
	return newConn(fd)
}

// Sender returns who sent the message that Recv returned last, on a connection
// of Dial. It reports false before the first message, and on other connections.
func (c *Conn) Sender() (Credentials, bool) {
	if s := c.sender.Load(); s != nil {
		return *s, true
	}
	return Credentials{}, false
}

// Credentials returns those of the process that made the other end: of an
// accepted connection the one that connected, of an inherited one the supervisor
// that started this process. For a connection of Dial see Sender.
func (c *Conn) Credentials() (Credentials, error) {
	var u *unix.Ucred
	var credErr error
	if err := c.raw.Control(func(fd uintptr) {
		u, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return Credentials{}, fmt.Errorf("credentials of the other end: %w", err)
	}
	if credErr != nil {
		return Credentials{}, fmt.Errorf("credentials of the other end: %w", os.NewSyscallError("getsockopt SO_PEERCRED", credErr))
	}
	return Credentials{PID: int(u.Pid), UID: int(u.Uid)}, nil
}

// Handover is a handover socket in the hands of its worker.
//
// Accept may be called by one goroutine at a time, all else by any.
type Handover struct {
	file   *os.File
	raw    syscall.RawConn
	closed atomic.Bool // tells our own Close from a failure
}

// NewHandover makes a Handover of a descriptor from Listen, which it duplicates.
// It fails with ErrMalformed if that is something else.
func NewHandover(f *os.File) (*Handover, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("handover socket: %w", err)
	}
	dup := -1
	var dupErr error
	err = raw.Control(func(fd uintptr) {
		if dupErr = isListener(int(fd)); dupErr == nil {
			dup, dupErr = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
		}
	})
	if err = errors.Join(err, dupErr); err != nil {
		return nil, fmt.Errorf("handover socket: %w", err)
	}
	l := &Handover{file: os.NewFile(uintptr(dup), "handover socket")}
	if l.raw, err = l.file.SyscallConn(); err != nil {
		l.file.Close()
		return nil, fmt.Errorf("handover socket: %w", err)
	}
	return l, nil
}

func isListener(fd int) error {
	for option, want := range map[int]int{
		unix.SO_DOMAIN: unix.AF_UNIX, unix.SO_TYPE: unix.SOCK_SEQPACKET, unix.SO_ACCEPTCONN: 1,
	} {
		if got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, option); err != nil || got != want {
			return fmt.Errorf("%w: not a listening socket of that kind", ErrMalformed)
		}
	}
	return unix.SetNonblock(fd, true) // or Accept would hang in the kernel
}

// Accept returns the next connection. It waits for one until Close, and then
// returns io.EOF, or past the deadline an error that wraps
// [os.ErrDeadlineExceeded].
func (l *Handover) Accept() (*Conn, error) {
	var fd int
	var acceptErr error
	err := l.raw.Read(func(s uintptr) bool {
		for {
			fd, _, acceptErr = unix.Accept4(int(s), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
			switch {
			case errors.Is(acceptErr, unix.EINTR), errors.Is(acceptErr, unix.ECONNABORTED):
				continue
			}
			return !errors.Is(acceptErr, unix.EAGAIN)
		}
	})
	switch {
	case err != nil && l.closed.Load():
		return nil, io.EOF
	case err != nil:
		return nil, fmt.Errorf("accept on handover socket: %w", err)
	}
	if acceptErr != nil {
		return nil, fmt.Errorf("accept on handover socket: %w", os.NewSyscallError("accept4", acceptErr))
	}
	return newConn(fd)
}

// SetDeadline ends an Accept that waits past t. The zero time is no deadline.
func (l *Handover) SetDeadline(t time.Time) error { return l.file.SetReadDeadline(t) }

// Close ends Accept. The socket stays open in the hands of others.
func (l *Handover) Close() error {
	l.closed.Store(true)
	return l.file.Close()
}

// SetDeadline ends a Send or Recv that waits past t with an error that wraps
// [os.ErrDeadlineExceeded]. The zero time is no deadline.
func (c *Conn) SetDeadline(t time.Time) error { return c.file.SetDeadline(t) }
