package worker

import (
	"fmt"
	"iter"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/holdfast-quic/holdfast/shm"
)

// bells holds the doorbell of every worker slot. A doorbell is made once by
// the supervisor and lives as long as the service, so a slot gets its
// descriptor once and keeps it.
type bells struct {
	fds []atomic.Int32 // descriptor + 1; zero: none
}

func newBells(slots int) *bells { return &bells{fds: make([]atomic.Int32, slots)} }

// set makes f the doorbell of slot; f stays the caller's. A second doorbell
// for a slot replaces the first under its number, so that a ring in flight
// never meets a descriptor that means something else.
func (b *bells) set(slot shm.SlotID, f *os.File) error {
	if int(slot) >= len(b.fds) {
		return fmt.Errorf("doorbell of slot %d: only %d slots", slot, len(b.fds))
	}
	if old := b.fds[slot].Load(); old != 0 {
		return replaceFD(int(old-1), f)
	}
	fd, err := dupFD(f)
	if err != nil {
		return fmt.Errorf("doorbell of slot %d: %w", slot, err)
	}
	b.fds[slot].Store(int32(fd) + 1)
	return nil
}

// has reports whether slot can be rung.
func (b *bells) has(slot shm.SlotID) bool { return b.fds[slot].Load() != 0 }

// all yields the descriptors of all slots that have one.
func (b *bells) all() iter.Seq2[shm.SlotID, int] {
	return func(yield func(shm.SlotID, int) bool) {
		for slot := range b.fds {
			if fd := b.fds[slot].Load(); fd != 0 && !yield(shm.SlotID(slot), int(fd-1)) {
				return
			}
		}
	}
}

// ring wakes the consumer of slot.
func (b *bells) ring(slot shm.SlotID) {
	if fd := b.fds[slot].Load(); fd != 0 {
		signalFD(int(fd - 1))
	}
}

func (b *bells) close() {
	for i := range b.fds {
		if fd := b.fds[i].Swap(0); fd != 0 {
			unix.Close(int(fd - 1))
		}
	}
}
