package worker

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-quic/holdfast/connid"
	"github.com/holdfast-quic/holdfast/packetqueue"
	"github.com/holdfast-quic/holdfast/shm"
)

// node is what the listeners of one worker share on the packet path: the
// segment, who this worker is in it, and how to reach the others.
type node struct {
	segment    *shm.Segment
	table      *shm.Table
	directory  *shm.Directory
	admission  *shm.Admission
	counters   *shm.Counters
	self       shm.Owner
	generation shm.Generation
	router     *connid.Router
	retries    retryTokens
	bells      *bells
	clock      clock

	admitted admissions

	phaseMu sync.Mutex
	phase   shm.Phase // as the directory shows it

	// warn logs what an operator should know. Never called per packet.
	warn func(what, listener string, err error)
}

func newNode(seg *shm.Segment, self shm.Owner, gen shm.Generation, r *connid.Router) (*node, error) {
	c, err := newClock()
	if err != nil {
		return nil, err
	}
	return &node{
		segment:    seg,
		table:      seg.Table(),
		directory:  seg.Directory(),
		admission:  seg.Admission(),
		counters:   seg.Counters(self.Slot),
		self:       self,
		generation: gen,
		router:     r,
		bells:      newBells(seg.Geometry().Slots),
		clock:      c,
		warn:       func(string, string, error) {},
	}, nil
}

// token names this worker as a producer in the queues of others.
func (n *node) token() uint64 {
	return packetqueue.Token(uint16(n.self.Slot), uint32(n.self.Incarnation))
}

// setPhase shows in the directory how far the worker is.
func (n *node) setPhase(p shm.Phase) {
	n.phaseMu.Lock()
	defer n.phaseMu.Unlock()
	n.phase = p
	n.directory.SetPhase(n.self.Slot, p)
}

// beat shows in the directory that the worker lives, and its phase once more:
// what is damaged there would stay so, as nobody else may write it.
func (n *node) beat() {
	n.directory.Beat(n.self.Slot, n.clock.now())
	n.phaseMu.Lock()
	defer n.phaseMu.Unlock()
	n.directory.SetPhase(n.self.Slot, n.phase)
}

// admissions keeps the entries of connections that are just being started
// apart from the clearing of the table when none is left.
type admissions struct {
	mu   sync.RWMutex // held for reading while an entry is made
	last atomic.Int64 // when that was last (CLOCK_MONOTONIC, nanoseconds)
	any  atomic.Bool  // the table may hold entries of this worker
}

// admit claims the connection ID of a new connection for this worker and
// returns who got it. A table without room leaves it unclaimed: the
// connection is served all the same for as long as its packets come in here.
// This is once per Initial packet that starts something, never per packet.
func (n *node) admit(id connid.ID, now int64) shm.Owner {
	winner, err := n.claim(id, n.self, now)
	if err != nil {
		return n.self
	}
	return winner
}

// claim makes a worker, which may be another one, the owner of the connection
// ID of a new connection, unless somebody has it already, and returns who has
// it. An error says that the table has no room.
func (n *node) claim(id connid.ID, owner shm.Owner, now int64) (shm.Owner, error) {
	if owner == n.self {
		a := &n.admitted
		a.mu.RLock()
		defer a.mu.RUnlock()
		a.note(now)
	}
	winner, err := n.table.InsertFor(id, n.self, owner, shm.KindHandshaking, shm.EpochAt(now))
	if err != nil {
		n.counters.Add(shm.TableFull, 1)
	}
	return winner, err
}

// note takes note of a connection that is started now.
func (a *admissions) note(now int64) {
	a.last.Store(now)
	a.any.Store(true)
}

// settle is how long after the last admission the table is left alone.
const settle = 3 * time.Second

// clearTable removes all entries of this worker if idle says that it has no
// connection and none was admitted for a while.
func (n *node) clearTable(idle func() bool) {
	a := &n.admitted
	if !a.any.Load() || n.clock.now()-a.last.Load() < int64(settle) || !idle() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if n.clock.now()-a.last.Load() < int64(settle) || !idle() {
		return
	}
	n.table.RemoveAll(n.self)
	a.any.Store(false)
}
