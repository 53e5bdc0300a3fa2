package worker

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/holdfast-quic/holdfast/packetqueue"
)

// Descriptors on the packet path are plain numbers that this package closes
// itself: an *os.File would register a socket with Go's poller, where traffic
// of other workers' connections wakes this process, and its finalizer would
// close a number that is still in use.

// dupFD returns a close-on-exec duplicate of f's descriptor; f stays the
// caller's. It goes through the file's own lock and leaves the blocking mode,
// which is shared with other processes, as it is.
func dupFD(f *os.File) (int, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	dup := -1
	var dupErr error
	if err := raw.Control(func(fd uintptr) {
		dup, dupErr = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	}); err != nil {
		return -1, err
	}
	if dupErr != nil {
		return -1, os.NewSyscallError("fcntl F_DUPFD_CLOEXEC", dupErr)
	}
	return dup, nil
}

// replaceFD makes fd a duplicate of f's descriptor in one step.
func replaceFD(fd int, f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var dupErr error
	if err := raw.Control(func(from uintptr) {
		dupErr = unix.Dup3(int(from), fd, unix.O_CLOEXEC)
	}); err != nil {
		return err
	}
	return os.NewSyscallError("dup3", dupErr)
}

// newEventFD returns an eventfd as a plain number.
func newEventFD() (int, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return -1, fmt.Errorf("make event descriptor: %w", err)
	}
	return fd, nil
}

// signalFD makes an eventfd readable once more.
func signalFD(fd int) { _ = packetqueue.RingFD(fd) }
