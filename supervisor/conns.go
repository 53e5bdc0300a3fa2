package supervisor

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
	"github.com/holdfast-quic/holdfast/shm"
)

// connsTimeout is how long workers have to list their connections.
const connsTimeout = 2 * time.Second

// ConnStatus is one live connection, of GET /v1/conns.
type ConnStatus struct {
	lifeline.ConnInfo
	Generation  shm.Generation  `json:"generation"`
	Slot        shm.SlotID      `json:"slot"`
	Incarnation shm.Incarnation `json:"incarnation"`
}

// ConnList is the answer of GET /v1/conns.
type ConnList struct {
	Conns []ConnStatus `json:"conns"`
	// Silent names the workers that did not answer in time.
	Silent []string `json:"silent,omitempty"`
}

// connsQuery collects the answers to one question to several workers.
type connsQuery struct {
	open   map[*worker]bool
	list   ConnList
	refuse string // why the connection could not be closed
	timer  *timer
	done   chan *connsQuery // has room for one
}

// ask sends a message, which make fills with the query's number, to workers
// and collects what they answer.
func (s *Supervisor) ask(workers []*worker, make func(seq uint64) *lifeline.Message) chan *connsQuery {
	s.nextSeq++
	seq := s.nextSeq
	q := &connsQuery{open: map[*worker]bool{}, list: ConnList{Conns: []ConnStatus{}}, done: newQueryResult()}
	for _, w := range workers {
		if w.welcomed() {
			q.open[w] = true
			w.send(make(seq))
		}
	}
	s.queries[seq] = q
	q.timer = s.after(connsTimeout, func() {
		for w := range q.open {
			q.list.Silent = append(q.list.Silent, w.owner().String())
		}
		clear(q.open)
		s.finishQuery(seq, q)
	})
	s.finishQuery(seq, q)
	return q.done
}

func newQueryResult() chan *connsQuery { return make(chan *connsQuery, 1) }

// finishQuery hands the answer over once nobody is left to wait for.
func (s *Supervisor) finishQuery(seq uint64, q *connsQuery) {
	if len(q.open) > 0 || s.queries[seq] != q {
		return
	}
	q.timer.stop()
	delete(s.queries, seq)
	slices.SortStableFunc(q.list.Conns, func(a, b ConnStatus) int { return cmp.Compare(a.Incarnation, b.Incarnation) })
	q.done <- q
}

func (s *Supervisor) connsReply(w *worker, r *lifeline.ConnsReply) {
	q := s.queries[r.Seq]
	if q == nil || !q.open[w] {
		return // too late, or never asked
	}
	for _, c := range r.Conns {
		q.list.Conns = append(q.list.Conns, ConnStatus{ConnInfo: c, Generation: w.gen.id, Slot: w.slot, Incarnation: w.incarnation})
	}
	if r.Error != "" {
		q.refuse = r.Error
	}
	if r.Last || r.Error != "" {
		delete(q.open, w)
		s.finishQuery(r.Seq, q)
	}
}

// failQueries stops waiting for a worker that is dead.
func (s *Supervisor) failQueries(w *worker) {
	for seq, q := range s.queries {
		if q.open[w] {
			delete(q.open, w)
			q.refuse = "its worker has ended"
			s.finishQuery(seq, q)
		}
	}
}

// workersWhere returns the workers of a generation and in a slot; 0 and -1
// stand for any.
func (s *Supervisor) workersWhere(generation shm.Generation, slot int) []*worker {
	var out []*worker
	for w := range s.workers {
		if (generation == 0 || w.gen.id == generation) && (slot < 0 || int(w.slot) == slot) {
			out = append(out, w)
		}
	}
	slices.SortFunc(out, func(a, b *worker) int { return cmp.Compare(a.incarnation, b.incarnation) })
	return out
}

// ownerOf finds the worker that a connection's ID names.
func (s *Supervisor) ownerOf(id string) (*worker, error) {
	parts := strings.Split(id, ".")
	if len(parts) == 3 {
		slot, errSlot := strconv.ParseUint(parts[0], 10, 16)
		incarnation, errInc := strconv.ParseUint(parts[1], 10, 32)
		if err := errors.Join(errSlot, errInc); err == nil {
			for w := range s.workers {
				if uint64(w.slot) == slot && uint64(w.incarnation) == incarnation && w.welcomed() {
					return w, nil
				}
			}
			return nil, fmt.Errorf("%w: no worker has connection %s", ErrNotFound, id)
		}
	}
	return nil, fmt.Errorf("%w: %q is not a connection's ID (SLOT.INCARNATION.NUMBER)", ErrUsage, id)
}
