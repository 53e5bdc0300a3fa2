package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"go.uber.org/zap"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
	"github.com/holdfast-quic/holdfast/shm"
)

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
	f, err := lifeline.Listen(handoverPath(s.dir, slot))
	if err != nil {
		s.log.Error("open the handover socket of a worker; should this supervisor be killed, that worker ends", zap.Uint16("slot", uint16(slot)), zap.Error(err))
		return nil
	}
	s.handover[slot] = f
	return f
}

// answering reports whether a living process listens on the path. One that many
// others wait for lives.
func answering(path string) bool {
	conn, err := lifeline.Dial(path)
	if err != nil {
		return errors.Is(err, syscall.EAGAIN)
	}
	conn.Close()
	return true
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
