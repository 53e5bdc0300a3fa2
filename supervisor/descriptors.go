package supervisor

import (
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/holdfast-quic/holdfast/shm"
)

// descriptors are open files that one supervisor leaves to the next, by what
// they are: over an exec, from the workers, or from a service manager that kept
// them. Who takes one owns it.
type descriptors map[string]*os.File

// Names of what there is once in an instance.
const (
	nameSegment = "segment"
	nameLock    = "lock"
	nameAdmin   = "admin"
)

func nameDoorbell(slot shm.SlotID) string  { return fmt.Sprintf("doorbell.%d", slot) }
func nameHandover(slot shm.SlotID) string  { return fmt.Sprintf("handover.%d", slot) }
func namePayload(id shm.Generation) string { return fmt.Sprintf("payload.%d", id) }
func nameImage(id shm.Generation) string   { return fmt.Sprintf("image.%d", id) }
func nameSelf(id shm.Generation) string    { return fmt.Sprintf("self.%d", id) }

func nameSocket(k socketKey) string {
	return fmt.Sprintf("socket.%d.%s.%d", k.listener, k.network, k.index)
}

// take returns the file of that name, or nil, and forgets it.
func (d descriptors) take(name string) *os.File {
	f := d[name]
	delete(d, name)
	return f
}

// add keeps f under a name, unless there is one already: then f is closed.
func (d descriptors) add(name string, f *os.File) {
	if f == nil {
		return
	}
	if d[name] != nil {
		f.Close()
		return
	}
	d[name] = f
}

// close closes what nobody took and returns the names.
func (d descriptors) close() []string {
	left := slices.Sorted(maps.Keys(d))
	for _, f := range d {
		f.Close()
	}
	clear(d)
	return left
}

// descriptors returns all that the next supervisor of this instance needs. They
// stay the supervisor's.
func (s *Supervisor) descriptors() descriptors {
	d := descriptors{nameSegment: s.seg.File(), nameLock: s.inst.lock}
	if s.admin != nil {
		d[nameAdmin] = s.admin.socket
	}
	for i, bell := range s.slots.doorbells {
		if bell != nil {
			d[nameDoorbell(shm.SlotID(i))] = bell
		}
	}
	for i, h := range s.slots.handover {
		if h != nil {
			d[nameHandover(shm.SlotID(i))] = h
		}
	}
	for _, l := range s.sockets.all() {
		for _, set := range l.sets {
			for _, sock := range set.sockets {
				d[nameSocket(sock.key())] = sock.file
			}
		}
	}
	for _, g := range s.generations {
		if g.payload != nil {
			d[namePayload(g.id)] = g.payload
		}
		if g.image != nil {
			d[nameImage(g.id)] = g.image.file
		}
		if g.self != nil && !g.self.same(g.image) {
			d[nameSelf(g.id)] = g.self.file
		}
	}
	d.addProbation(s.probation)
	return d
}
