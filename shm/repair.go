package shm

import (
	"sync"

	"github.com/holdfast-quic/holdfast/internal/mem"
)

// kept remembers the words of a region that one process alone writes, so that
// it can tell damage from what it wrote itself. The zero value is ready.
type kept struct {
	mu    sync.Mutex
	words map[int]uint64 // by offset
}

// put stores a word and remembers it.
func (k *kept) put(v mem.View, off int, w uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.words == nil {
		k.words = make(map[int]uint64)
	}
	k.words[off] = w
	v.Store64(off, w)
}

// get returns the word that was put last or, if none was, what the region holds.
func (k *kept) get(v mem.View, off int) uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	if w, ok := k.words[off]; ok {
		return w
	}
	return v.Load64(off)
}

// repair stores again what was put and is not there any more, and returns how
// many words that were.
func (k *kept) repair(v mem.View) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := 0
	for off, w := range k.words {
		if v.Load64(off) != w {
			v.Store64(off, w)
			n++
		}
	}
	return n
}

// Repair writes header, directory and admission again where they are not what
// this process has written to them, and returns how many words were damaged.
// Supervisor only. What workers write, and the table, mends itself: by the next
// write, by expiry and by [Table.Sweep]; queues have a repair of their own.
func (s *Segment) Repair() int {
	n := 0
	for i, w := range s.page {
		if off := i * 8; s.view.Load64(off) != w {
			s.view.Store64(off, w)
			n++
		}
	}
	if d := s.directory.kept.repair(s.directory.view); d > 0 {
		s.directory.changed() // readers may have noted what was wrong
		n += d
	}
	return n + s.admission.kept.repair(s.admission.view)
}
