package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/holdfast-quic/holdfast/shm"
)

// handoverBacklog is more than the supervisors that can be there at once.
const handoverBacklog = 4

// handoverPath is where the worker of a slot is found by the supervisor that
// comes after this one.
func handoverPath(dir string, slot shm.SlotID) string {
	return filepath.Join(dir, fmt.Sprintf("worker-%d.sock", slot))
}

// openHandover opens the socket of a slot, or returns nil: a worker without one
// serves as well, as long as this supervisor lives.
func (s *slots) openHandover(slot shm.SlotID) *os.File {
	if s.dir == "" {
		return nil
	}
	f, err := newHandover(s.dir, slot)
	if err != nil {
		s.log.Error("open the handover socket of a worker; should this supervisor be killed, that worker ends", zap.Uint16("slot", uint16(slot)), zap.Error(err))
		return nil
	}
	s.handover[slot] = f
	return f
}

// newHandover opens the listening socket that a worker accepts its next
// supervisor on. The worker gets the descriptor and needs no right to the
// directory.
//
// Preconditions: no living process listens on the path.
func newHandover(dir string, slot shm.SlotID) (*os.File, error) {
	path := handoverPath(dir, slot)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), path) // blocking as yet: this end stays out of Go's poller
	if err := listenHandover(fd, path); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func listenHandover(fd int, path string) error {
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return fmt.Errorf("bind %s: %w", path, err)
	}
	// The directory, mode 0700, guards it meanwhile.
	if err := os.Chmod(path, 0o600); err != nil {
		return err
	}
	if err := unix.Listen(fd, handoverBacklog); err != nil {
		return fmt.Errorf("listen on %s: %w", path, err)
	}
	return os.NewSyscallError("fcntl O_NONBLOCK", unix.SetNonblock(fd, true))
}

// answering reports whether a living process listens on the path. One whose
// backlog is full lives.
func answering(path string) bool {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
	return err == nil || errors.Is(err, unix.EAGAIN)
}

// handoverSlots returns the slots that the directory has a handover socket of,
// of the living and the dead.
func handoverSlots(dir string) []shm.SlotID {
	paths, _ := filepath.Glob(filepath.Join(dir, "worker-*.sock"))
	var out []shm.SlotID
	for _, path := range paths {
		var slot uint16
		if _, err := fmt.Sscanf(filepath.Base(path), "worker-%d.sock", &slot); err == nil && handoverPath(dir, shm.SlotID(slot)) == path {
			out = append(out, shm.SlotID(slot))
		}
	}
	slices.Sort(out)
	return out
}

// Living returns how many workers of an instance serve on without a supervisor.
// Those that have one do not count: they don't accept another, but this can't be
// seen from outside, so the caller has found that there is no supervisor.
func Living(runtimeDir string) int {
	n := 0
	for _, slot := range handoverSlots(runtimeDir) {
		if answering(handoverPath(runtimeDir, slot)) {
			n++
		}
	}
	return n
}

// closeHandover ends a slot's socket.
func (s *slots) closeHandover(slot shm.SlotID) {
	if f := s.handover[slot]; f != nil {
		f.Close()
		s.handover[slot] = nil
	}
	if s.dir != "" {
		os.Remove(handoverPath(s.dir, slot))
	}
}

// sweepHandover removes the sockets of slots that nobody is in.
//
// Preconditions: all living workers have been found.
func (s *slots) sweepHandover() {
	for _, slot := range handoverSlots(s.dir) {
		if int(slot) >= len(s.owners) || s.owners[slot] == nil {
			os.Remove(handoverPath(s.dir, slot))
		}
	}
}
