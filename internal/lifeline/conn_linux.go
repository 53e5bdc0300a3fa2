package lifeline

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// FD is the number under which a worker finds its end of the lifeline.
	FD = 3
	// Env is the variable that announces FD to the worker, which removes it
	// from its environment at once so that its own children do not see it.
	Env = "HOLDFAST_LIFELINE"

	// maxMessage bounds one message. The default socket buffer of Linux
	// (net.core.wmem_default, 212,992 bytes) still takes it.
	maxMessage = 128 << 10
	// maxFiles is the kernel's SCM_MAX_FD; more descriptors than this travel
	// in continuation packets that precede the message.
	maxFiles = 253
)

// continuation is the payload of a packet that only carries descriptors of
// the message behind it. It is not JSON, so it can't be taken for a message.
var continuation = []byte{0}

// Conn is one end of a lifeline.
//
// Send may be called by any number of goroutines, Recv by one at a time.
// Close unblocks both.
type Conn struct {
	file *os.File
	raw  syscall.RawConn

	closed atomic.Bool // tells our own Close from a failure

	sendMu sync.Mutex // keeps a message and its continuations together

	sender atomic.Pointer[Credentials] // of the last message; nil: not asked for

	// Owned by the goroutine in Recv.
	buf  []byte
	oob  []byte
	held []*os.File // descriptors of continuations whose message is still to come
}

// Pair makes a lifeline: the supervisor's end, and the file to hand to the
// child as descriptor FD. The caller closes child once the process is
// started; both are close-on-exec.
func Pair() (*Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make lifeline: %w", err)
	}
	child := os.NewFile(uintptr(fds[1]), "lifeline-child")
	conn, err := newConn(fds[0])
	if err != nil {
		child.Close()
		return nil, nil, err
	}
	return conn, child, nil
}

// Inherit returns the worker's end of the lifeline that its supervisor passed,
// and removes the announcement from the environment. ErrNoLifeline means that
// the process was started by hand.
func Inherit() (*Conn, error) {
	number, ok := os.LookupEnv(Env)
	if !ok {
		return nil, ErrNoLifeline
	}
	os.Unsetenv(Env)
	fd, err := strconv.Atoi(number)
	if err != nil || fd < 0 {
		return nil, fmt.Errorf("%w: %s=%q is no descriptor number", ErrNoLifeline, Env, number)
	}
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil || kind != unix.SOCK_SEQPACKET {
		return nil, fmt.Errorf("%w: descriptor %d is no lifeline", ErrNoLifeline, fd)
	}
	unix.CloseOnExec(fd)
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("open lifeline: %w", err)
	}
	return newConn(fd)
}

func newConn(fd int) (*Conn, error) {
	file := os.NewFile(uintptr(fd), "lifeline")
	raw, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("open lifeline: %w", err)
	}
	return &Conn{
		file: file,
		raw:  raw,
		buf:  make([]byte, maxMessage+1),
		oob:  make([]byte, unix.CmsgSpace(4*maxFiles)+unix.CmsgSpace(unix.SizeofUcred)),
	}, nil
}

// Send sends one message with the given files, which stay the caller's. It
// waits while the socket is full. An error means that the message did not
// arrive, and, except for ErrTooLarge, that the other end is gone.
func (c *Conn) Send(m *Message, files ...*os.File) error {
	fds := make([]int, 0, len(files))
	// Each descriptor is borrowed under its file's own lock, so that a
	// concurrent Close can't let the number name something else meanwhile.
	return borrow(files, &fds, func() error { return c.SendNumbers(m, fds) })
}

// SendNumbers is Send for descriptors that are no files: the caller keeps them
// open until it returns.
func (c *Conn) SendNumbers(m *Message, fds []int) error {
	wire, err := Encode(m)
	if err != nil {
		return err
	}
	if len(wire) > maxMessage {
		return fmt.Errorf("send %s: %w: %d bytes of at most %d", m.Kind, ErrTooLarge, len(wire), maxMessage)
	}
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	for len(fds) > maxFiles {
		if err := c.sendPacket(continuation, fds[:maxFiles]); err != nil {
			return fmt.Errorf("send %s: %w", m.Kind, err)
		}
		fds = fds[maxFiles:]
	}
	if err := c.sendPacket(wire, fds); err != nil {
		return fmt.Errorf("send %s: %w", m.Kind, err)
	}
	return nil
}

const (
	// transitPause and transitPatience are for a user that has as many
	// descriptors in transit, in messages that nobody has read yet, as the
	// kernel lets it have open (unix(7), ETOOMANYREFS): the readers are on it.
	transitPause    = 5 * time.Millisecond
	transitPatience = 5 * time.Second
)

func (c *Conn) sendPacket(wire []byte, fds []int) error {
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	for begin := time.Now(); ; time.Sleep(transitPause) {
		var sendErr error
		err := c.raw.Write(func(fd uintptr) bool {
			sendErr = unix.Sendmsg(int(fd), wire, rights, nil, unix.MSG_NOSIGNAL)
			return !errors.Is(sendErr, unix.EAGAIN) && !errors.Is(sendErr, unix.EINTR)
		})
		switch {
		case err != nil:
			return err
		case !errors.Is(sendErr, unix.ETOOMANYREFS) || time.Since(begin) > transitPatience:
			return sendErr
		}
	}
}

// borrow calls use with the descriptor numbers of all files in fds, each held
// open by its file for the time of the call.
func borrow(files []*os.File, fds *[]int, use func() error) error {
	if len(files) == 0 {
		return use()
	}
	raw, err := files[0].SyscallConn()
	if err != nil {
		return err
	}
	var useErr error
	if err := raw.Control(func(fd uintptr) {
		*fds = append(*fds, int(fd))
		useErr = borrow(files[1:], fds, use)
	}); err != nil {
		return err
	}
	return useErr
}

// Recv returns the next message with the descriptors that came with it, in
// the order of Send; they are the caller's. io.EOF means that the other end
// is gone; ErrMalformed that it sent rubbish, whose descriptors are closed.
func (c *Conn) Recv() (*Message, []*os.File, error) {
	for {
		n, files, err := c.recvPacket()
		if err != nil {
			c.dropHeld()
			return nil, nil, err
		}
		c.held = append(c.held, files...)
		if n == 1 && c.buf[0] == continuation[0] {
			continue
		}
		m, err := Decode(c.buf[:n])
		if err != nil {
			c.dropHeld()
			return nil, nil, err
		}
		files, c.held = c.held, nil
		return m, files, nil
	}
}

func (c *Conn) dropHeld() {
	for _, f := range c.held {
		f.Close()
	}
	c.held = nil
}

func (c *Conn) recvPacket() (int, []*os.File, error) {
	var n, oobn, flags int
	var recvErr error
	err := c.raw.Read(func(fd uintptr) bool {
		n, oobn, flags, _, recvErr = unix.Recvmsg(int(fd), c.buf, c.oob, unix.MSG_CMSG_CLOEXEC)
		return !errors.Is(recvErr, unix.EAGAIN) && !errors.Is(recvErr, unix.EINTR)
	})
	switch {
	case err != nil && c.closed.Load():
		return 0, nil, io.EOF
	case err != nil:
		return 0, nil, fmt.Errorf("receive: %w", err)
	case errors.Is(recvErr, unix.ECONNRESET):
		return 0, nil, io.EOF
	case recvErr != nil:
		return 0, nil, fmt.Errorf("receive: %w", recvErr)
	}
	files, sender, err := unpack(c.oob[:oobn])
	if err != nil {
		return 0, nil, err
	}
	if n == 0 {
		return 0, nil, io.EOF
	}
	if n > maxMessage || flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		for _, f := range files {
			f.Close()
		}
		return 0, nil, fmt.Errorf("receive: %w: truncated", ErrMalformed)
	}
	if sender != nil {
		c.sender.Store(sender)
	}
	return n, files, nil
}

// unpack takes the descriptors out of control messages, and who sent them if
// that is among them.
func unpack(oob []byte) (files []*os.File, sender *Credentials, err error) {
	if len(oob) == 0 {
		return nil, nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, nil, fmt.Errorf("receive: %w: %w", ErrMalformed, err)
	}
	for i := range messages {
		if u, err := unix.ParseUnixCredentials(&messages[i]); err == nil {
			sender = &Credentials{PID: int(u.Pid), UID: int(u.Uid)}
			continue
		}
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue // another kind of control message carries no descriptor
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "inherited"))
		}
	}
	return files, sender, nil
}

// Close closes this end; the other one reads io.EOF.
func (c *Conn) Close() error {
	c.closed.Store(true)
	return c.file.Close()
}
