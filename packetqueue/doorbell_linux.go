package packetqueue

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/holdfast-quic/holdfast/internal/mem"
)

// NewDoorbell returns a new eventfd, non-blocking and close-on-exec. The caller
// owns it and keeps the *os.File reachable for as long as its number is in use
// anywhere. The consumer registers it in its epoll with EPOLLIN and EPOLLET and
// never reads it: each ring is an edge of its own.
func NewDoorbell() (*os.File, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create doorbell: %w", os.NewSyscallError("eventfd2", err))
	}
	// A file made of a descriptor that does not block would get into Go's
	// poller, and every ring would wake its owner beside the consumer.
	f := os.NewFile(uintptr(fd), "doorbell")
	if err := unix.SetNonblock(fd, true); err != nil {
		f.Close()
		return nil, fmt.Errorf("create doorbell: %w", os.NewSyscallError("fcntl O_NONBLOCK", err))
	}
	return f, nil
}

// Ring wakes the consumer that sleeps on the doorbell f.
func Ring(f *os.File) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return fmt.Errorf("ring doorbell: %w", err)
	}
	var ringErr error
	if err := conn.Control(func(fd uintptr) { ringErr = RingFD(int(fd)) }); err != nil {
		return fmt.Errorf("ring doorbell: %w", err)
	}
	return ringErr
}

// one is what a ring adds to the counter. Never written to.
var one uint64 = 1

// RingFD is Ring for the packet path: one write(2), no allocation. The caller
// keeps the descriptor open meanwhile.
func RingFD(fd int) error {
	for {
		switch errno := mem.WriteWord(fd, &one); errno {
		case 0, unix.EAGAIN: // a full counter is readable, so the consumer is woken
			return nil
		case unix.EINTR:
		default:
			return fmt.Errorf("ring doorbell: %w", os.NewSyscallError("write", errno))
		}
	}
}
