package worker

import (
	"fmt"
	"testing"

	"github.com/holdfast-quic/holdfast/shm"
)

var (
	self  = shm.Owner{Slot: 1, Incarnation: 10}
	other = shm.Owner{Slot: 2, Incarnation: 11}
	third = shm.Owner{Slot: 3, Incarnation: 12}
)

// where says what the table or the route names.
type where int

const (
	nowhere where = iota
	here
	there
)

func (w where) owner(there shm.Owner) (shm.Owner, bool) {
	switch w {
	case here:
		return self, true
	case nowhere:
		return shm.Owner{}, false
	}
	return there, true
}

// oracle is the documentation of steer, cell by cell and without sharing
// anything with it.
func oracle(c class, src source, table, route where, shaking, admits bool) verdict {
	loop := verdict{action: drop, reason: shm.DropLoop}
	queue := src == fromQueue
	switch {
	case c == classMalformed && queue:
		return loop
	case c == classMalformed:
		return verdict{action: drop, reason: shm.DropMalformed}
	case c == classUnknownVersion && (queue || admits):
		return verdict{action: answer}
	case c == classUnknownVersion:
		return verdict{action: forwardAdmitted}
	case table == here && shaking && c == classShort:
		return verdict{action: deliver, note: noteEstablish}
	case table == here:
		return verdict{action: deliver}
	case table == there && queue:
		return loop
	case table == there:
		return verdict{action: forward, owner: other}
	case route == here && (c == classShort || c == classHandshake):
		return verdict{action: deliver, note: noteLearn}
	case route == here:
		return verdict{action: deliver}
	case route == there && queue:
		return loop
	case route == there:
		return verdict{action: forward, owner: third}
	}
	switch {
	case (c == classRunt || c == classHandshake) && queue:
		return loop
	case c == classRunt:
		return verdict{action: drop, reason: shm.DropMalformed}
	case c == classHandshake:
		return verdict{action: drop, reason: shm.DropOrphan}
	case !queue && !admits:
		return verdict{action: forwardAdmitted}
	case c == classShort:
		return verdict{action: answer}
	}
	return verdict{action: accept}
}

func TestSteerEveryCell(t *testing.T) {
	cells := 0
	for c := range numClasses {
		for _, src := range []source{fromSocket, fromQueue} {
			for _, table := range []where{nowhere, here, there} {
				for _, route := range []where{nowhere, here, there} {
					for flags := range 4 {
						shaking, admits := flags&1 != 0, flags&2 != 0
						q := question{class: c, source: src, self: self, handshaking: shaking, admits: admits}
						q.table, q.inTable = table.owner(other)
						q.route, q.inRoute = route.owner(third)
						cells++
						if got, want := steer(q), oracle(c, src, table, route, shaking, admits); got != want {
							t.Errorf("%v from %v, table %v, route %v, shaking %v, admits %v: got %+v, want %+v",
								c, src, table, route, shaking, admits, got, want)
						}
					}
				}
			}
		}
	}
	if want := int(numClasses) * 2 * 3 * 3 * 4; cells != want {
		t.Errorf("%d cells, want %d", cells, want)
	}
}

// The rules behind the table, each over all cells that it speaks of.
func TestSteerRules(t *testing.T) {
	each := func(f func(q question, v verdict) string) {
		for c := range numClasses {
			for bits := range 1 << 6 {
				q := question{class: c, source: source(bits & 1), self: self, admits: bits&2 != 0, handshaking: bits&4 != 0}
				q.inTable, q.inRoute = bits&8 != 0, bits&16 != 0
				q.table, q.route = self, self
				if bits&32 != 0 {
					q.table, q.route = other, other
				}
				if why := f(q, steer(q)); why != "" {
					t.Errorf("%s: %+v gives %+v", why, q, steer(q))
				}
			}
		}
	}
	each(func(q question, v verdict) string {
		switch {
		case q.source == fromQueue && (v.action == forward || v.action == forwardAdmitted):
			return "a pulled packet is forwarded again" // C097
		case v.action == forward && v.owner == self:
			return "a packet is forwarded to its reader"
		case v.action == deliver && !q.inTable && !q.inRoute:
			return "a packet of no connection is delivered"
		case v.action == answer && (q.inTable || q.inRoute) && q.class == classShort:
			return "a packet of a live connection is answered" // invariant 1
		case v.action == accept && (q.inTable || q.inRoute):
			return "the ID of a live connection is claimed for a new one"
		case v.action == drop && q.source == fromQueue && v.reason != shm.DropLoop:
			return fmt.Sprintf("a pulled packet is dropped as %v", v.reason)
		}
		return ""
	})
	// The route is looked up only when the table has nothing.
	each(func(q question, v verdict) string {
		if !q.inTable {
			return ""
		}
		without := q
		without.inRoute, without.route = false, shm.Owner{}
		if q.class != classUnknownVersion && steer(without) != v {
			return "the route counts although the table knows"
		}
		return ""
	})
}
