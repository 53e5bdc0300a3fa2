package notify

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// backlog is how many messages wait for a manager that does not read.
	backlog = 4096
	// patience bounds how long one message waits for room in its socket.
	patience = 5 * time.Second
)

// Sender sends messages in order. Its methods may be called from everywhere
// and never wait, except Flush. A nil Sender drops everything.
type Sender struct {
	address string
	failed  func(error)

	mu      sync.Mutex
	queue   []letter
	sending bool
	idle    *sync.Cond // nothing is queued or being sent
	broken  bool       // the last message could not be sent
}

type letter struct {
	text string
	file *os.File
}

// NewSender returns a Sender to the manager's socket. failed is told of the
// first of each row of failures; it must not wait for anything.
func NewSender(address string, failed func(error)) *Sender {
	s := &Sender{address: address, failed: failed}
	s.idle = sync.NewCond(&s.mu)
	return s
}

// Send sends assignments in one message.
func (s *Sender) Send(assignments ...string) { s.put(letter{text: strings.Join(assignments, "\n")}) }

// Behind reports whether the manager does not keep up, so that what only
// repeats itself need not take the room of what does not.
func (s *Sender) Behind() bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue) > backlog/2
}

// SendFile sends assignments with a descriptor, which must stay open until
// the message is sent; if it is closed before, the message is dropped.
func (s *Sender) SendFile(f *os.File, assignments ...string) {
	s.put(letter{text: strings.Join(assignments, "\n"), file: f})
}

func (s *Sender) put(l letter) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) >= backlog {
		s.report(errors.New("the service manager does not read what it is told"))
		return
	}
	s.queue = append(s.queue, l)
	if !s.sending {
		s.sending = true
		go s.run()
	}
}

// Flush waits until everything has been sent, at most for d.
func (s *Sender) Flush(d time.Duration) {
	if s == nil {
		return
	}
	late := false
	timer := time.AfterFunc(d, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		late = true
		s.idle.Broadcast()
	})
	defer timer.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.sending && !late {
		s.idle.Wait()
	}
}

func (s *Sender) run() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.queue) > 0 {
		letters := s.queue
		s.queue = nil
		for _, l := range letters {
			s.mu.Unlock()
			err := send(s.address, l)
			s.mu.Lock()
			if errors.Is(err, os.ErrClosed) {
				continue // a descriptor that was closed before its turn
			}
			s.report(err)
		}
	}
	s.sending = false
	s.idle.Broadcast()
}

// report tells of the first failure after a success.
func (s *Sender) report(err error) {
	if err != nil && !s.broken && s.failed != nil {
		s.failed(fmt.Errorf("tell the service manager: %w", err))
	}
	s.broken = err != nil
}

// send opens a socket for each message: a manager that was started anew may
// have another one at the same address.
func send(address string, l letter) error {
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: address, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if l.file == nil {
		_, err = conn.Write([]byte(l.text))
		return err
	}
	file, err := l.file.SyscallConn()
	if err != nil {
		return err
	}
	// Control rather than Fd, which would make the description blocking.
	if controlErr := file.Control(func(fd uintptr) { err = sendRights(conn, l.text, int(fd)) }); controlErr != nil {
		return os.ErrClosed
	}
	return err
}

// sendRights sends a descriptor with the text, which net refuses to do on a
// datagram socket that is connected.
func sendRights(conn *net.UnixConn, text string, fd int) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	rights := syscall.UnixRights(fd)
	if waitErr := raw.Write(func(socket uintptr) bool {
		err = syscall.Sendmsg(int(socket), []byte(text), rights, nil, syscall.MSG_NOSIGNAL)
		return !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.EINTR)
	}); waitErr != nil {
		return waitErr
	}
	return os.NewSyscallError("sendmsg", err)
}
