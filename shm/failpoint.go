package shm

// failpoint labels a place between two stores where a process may die or stop.
// Tests set Table.hook and do so there.
type failpoint string

const (
	fpReserved    failpoint = "insert: handshake counted, nothing claimed"
	fpClaimed     failpoint = "insert: claimed, no key"
	fpHalfKey     failpoint = "insert: a word of the key written"
	fpKey         failpoint = "insert: key written, not tentative"
	fpTentative   failpoint = "insert: tentative, not checked"
	fpChecked     failpoint = "insert: checked, not committed"
	fpCommitted   failpoint = "insert: committed, not counted"
	fpEstablish   failpoint = "establish: nothing done"
	fpEstablished failpoint = "establish: committed, not counted"
	fpRemove      failpoint = "remove: found"
	fpRemoved     failpoint = "remove: freed, not counted"
	fpSweep       failpoint = "sweep: about to free"
	fpSwept       failpoint = "sweep: freed, not counted"
)

// failpoints lists all of them.
var failpoints = []failpoint{
	fpReserved, fpClaimed, fpHalfKey, fpKey, fpTentative, fpChecked, fpCommitted,
	fpEstablish, fpEstablished, fpRemove, fpRemoved, fpSweep, fpSwept,
}

func (t *Table) reach(p failpoint) {
	if t.hook != nil {
		t.hook(p)
	}
}
