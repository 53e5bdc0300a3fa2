package worker

import "github.com/holdfast-quic/holdfast/shm"

// peers picks workers of the admitted generation that serve a listener. It
// keeps the list of the generations asked for last, current and canary, and
// reads the directory again when that says it has changed. It belongs to the
// reading goroutine.
type peers struct {
	directory *shm.Directory
	listener  uint8
	lists     [2]peerList
	next      int // list to give up next
}

type peerList struct {
	generation shm.Generation
	version    uint64
	filled     bool
	owners     []shm.Owner
}

func newPeers(d *shm.Directory, listener uint8) peers {
	p := peers{directory: d, listener: listener}
	for i := range p.lists {
		p.lists[i].owners = make([]shm.Owner, 0, d.Slots())
	}
	return p
}

// pick returns the worker of the generation that takes the connection ID with
// the given hash. All readers agree on it while the directory holds still.
func (p *peers) pick(gen shm.Generation, hash uint64) (shm.Owner, bool) {
	if gen == 0 {
		return shm.Owner{}, false
	}
	list := p.list(gen)
	n := uint64(len(list.owners))
	for i := range n {
		owner := list.owners[(hash%n+i)%n]
		if p.directory.Alive(owner) {
			return owner, true
		}
	}
	return shm.Owner{}, false
}

func (p *peers) list(gen shm.Generation) *peerList {
	version := p.directory.Version()
	for i := range p.lists {
		if l := &p.lists[i]; l.filled && l.generation == gen {
			if l.version != version {
				p.fill(l, gen, version)
			}
			return l
		}
	}
	l := &p.lists[p.next]
	p.next = (p.next + 1) % len(p.lists)
	p.fill(l, gen, version)
	return l
}

// fill reads the list anew. The version was read before, so that a change
// meanwhile leads to another reading.
func (p *peers) fill(l *peerList, gen shm.Generation, version uint64) {
	l.generation, l.version, l.filled = gen, version, true
	l.owners = l.owners[:0]
	for slot := range p.directory.Slots() {
		r := p.directory.Record(shm.SlotID(slot))
		if r.Alive && r.Serving && r.Generation == gen && r.Listeners>>p.listener&1 != 0 {
			l.owners = append(l.owners, shm.Owner{Slot: shm.SlotID(slot), Incarnation: r.Incarnation})
		}
	}
}
