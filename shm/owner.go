package shm

import "fmt"

// SlotID numbers a worker slot, from 0.
type SlotID uint16

// Incarnation counts the processes that were started, from 1, over all slots
// and generations. Together with the slot it names one process for ever.
type Incarnation uint32

// Generation numbers the sets of workers, from 1; never reused. 0 is none.
type Generation uint32

// Owner names the process that holds the state of a connection. The zero Owner
// is nobody.
type Owner struct {
	Slot        SlotID
	Incarnation Incarnation
}

// String returns "slot#incarnation".
func (o Owner) String() string { return fmt.Sprintf("%d#%d", o.Slot, o.Incarnation) }

// lowIncarnation is the part of an incarnation that table entries and
// connection IDs have room for.
const lowIncarnation = 1<<24 - 1

// low returns the incarnation as a table entry holds it.
func (o Owner) low() uint32 { return uint32(o.Incarnation) & lowIncarnation }
