package supervisor

import (
	"encoding/json"
	"time"

	"github.com/holdfast-quic/holdfast/shm"
)

// Versions of the state document that this build reads and writes. One that is
// newer than documentNewest is refused before anything is touched: it may say
// that something must not be done which this build would do. Fields that are
// unknown are ignored, so adding one needs no new version as long as it may be
// ignored.
const (
	documentOldest = 1
	documentNewest = 1
)

// document is all that one supervisor leaves to the next, except what must not
// be written down (keys, configurations with their private keys) and what can't
// be (descriptors). The next one is this process after an exec, or another
// process after this one was killed.
//
// What it says about processes is checked against the kernel, and what it says
// about generations against the segment: both may have gone on since.
type document struct {
	Version int    `json:"version"`
	BootID  string `json:"boot_id"` // of the kernel that all process IDs are from
	// Writer is the supervisor that wrote it.
	Writer writerDocument `json:"writer"`
	// Monotonic is CLOCK_MONOTONIC in nanoseconds at the moment that Time
	// names. All other times are right as far as Time is: what has passed since
	// is told by the monotonic clock, which nobody sets.
	Monotonic int64     `json:"monotonic"`
	Time      time.Time `json:"time"`

	Name    string    `json:"name"`
	Started time.Time `json:"started"`
	PIDFile string    `json:"pid_file,omitempty"`
	// Program is what an upgrade runs when none is named.
	Program string `json:"program,omitempty"`

	NextGeneration  shm.Generation    `json:"next_generation"`
	NextIncarnation shm.Incarnation   `json:"next_incarnation"`
	LastReload      time.Time         `json:"last_reload"`
	Stopping        bool              `json:"stopping,omitempty"`
	Counters        map[string]uint64 `json:"counters"`
	LastFailure     *Failure          `json:"last_failure,omitempty"`

	Operations    []Operation `json:"operations"` // oldest first
	LastOperation uint64      `json:"last_operation"`

	// Probation of the current generation, if it is on any.
	Probation *probationDocument `json:"probation,omitempty"`

	Listeners   []listenerDocument   `json:"listeners"`
	Numbers     []numbersDocument    `json:"numbers"`
	Generations []generationDocument `json:"generations"` // that have not ended, oldest first
}

type writerDocument struct {
	PID     int    `json:"pid"`
	Version string `json:"version"`
	BuildID string `json:"build_id"`
}

// numbersDocument says which socket indices of a listener number are used up.
type numbersDocument struct {
	Listener uint8 `json:"listener"`
	UDP      int   `json:"udp"`
	TCP      int   `json:"tcp"`
}

type listenerDocument struct {
	ID   uint8         `json:"id"`
	Name string        `json:"name"`
	Port string        `json:"port"` // as configured
	Real string        `json:"real"` // as the kernel gave it
	Sets []setDocument `json:"sets"`
}

type setDocument struct {
	Network  string           `json:"network"`
	Address  string           `json:"address"`
	V6Only   bool             `json:"v6_only,omitempty"`
	Released bool             `json:"released,omitempty"`
	Shared   bool             `json:"shared,omitempty"`
	Sockets  []socketDocument `json:"sockets"`
}

type socketDocument struct {
	Index int    `json:"index"`
	Bound string `json:"bound"`
	// Passed is the name under which the service manager's socket unit passed
	// it.
	Passed string `json:"passed,omitempty"`
}

type generationDocument struct {
	ID      shm.Generation  `json:"id"`
	State   GenerationState `json:"state"`
	Since   time.Time       `json:"since"`
	Spec    *Spec           `json:"spec"` // without Payload
	Wants   []wantDocument  `json:"wants"`
	Build   string          `json:"build_id,omitempty"` // of its workers
	Version string          `json:"version,omitempty"`
	// Image is the path of the program that its workers run, Self that of the
	// supervisor's while it is current.
	Image string `json:"image,omitempty"`
	Self  string `json:"self,omitempty"`

	Mode     string                 `json:"mode"`
	Window   time.Duration          `json:"window"`
	Grace    time.Duration          `json:"grace"`
	Goodbye  time.Time              `json:"goodbye"`  // zero: does not drain
	Deadline time.Time              `json:"deadline"` // the same
	Limits   map[uint8]spanDocument `json:"limits,omitempty"`
	Evicted  bool                   `json:"evicted,omitempty"`
	Reason   string                 `json:"reason,omitempty"`

	Before shm.Generation `json:"before,omitempty"` // that a rollback returns to
	Linger time.Time      `json:"linger"`           // until when its idle workers stay
	Trial  *trialDocument `json:"trial,omitempty"`  // of one that is a canary, or is to be

	Members []memberDocument `json:"members"`
	Workers []workerDocument `json:"workers"` // that have not been reaped
}

// wantDocument is one listener of a generation. Its ListenerSpec is the one of
// that name in the Spec.
type wantDocument struct {
	Listener uint8  `json:"listener"`
	Name     string `json:"name"`
	Address  string `json:"address"`
	V6Only   bool   `json:"v6_only,omitempty"`
}

type spanDocument struct {
	Goodbye time.Time `json:"goodbye"`
	End     time.Time `json:"end"`
}

// memberDocument is one place of a generation.
type memberDocument struct {
	Restarts int       `json:"restarts"`
	Failures int       `json:"failures"` // in a row, for the pause before the next start
	Started  time.Time `json:"started"`  // the last process
	Next     time.Time `json:"next"`     // when another is to be started; zero: none is
}

// workerDocument is one process.
type workerDocument struct {
	Place       int             `json:"place"`  // in the generation
	Member      bool            `json:"member"` // has the place; false: it was given up, and only its end is waited for
	Slot        shm.SlotID      `json:"slot"`
	Incarnation shm.Incarnation `json:"incarnation"`
	PID         int             `json:"pid"`
	StartTime   uint64          `json:"start_time"` // as field 22 of /proc/PID/stat has it; 0: not known
	State       workerState     `json:"state"`
	Started     time.Time       `json:"started"`
	Protocol    int             `json:"protocol"`
	GraceEnd    time.Time       `json:"grace_end"` // when it is killed; zero: not told to stop
	Drained     bool            `json:"drained,omitempty"`
	Reason      string          `json:"reason,omitempty"`
}

// snapshot describes the moment. It runs in the loop.
func (s *Supervisor) snapshot() *document {
	d := &document{
		Version: documentNewest, BootID: s.env.bootID(),
		Writer:    writerDocument{PID: s.env.getpid(), Version: s.opt.Version, BuildID: s.opt.BuildID},
		Monotonic: s.env.monotonic(), Time: time.Now(),
		Name: s.opt.Name, Started: s.started, PIDFile: s.inst.pidFile, Program: s.program,
		NextGeneration: s.nextGeneration, NextIncarnation: s.nextIncarnation,
		LastReload: s.lastReload, Stopping: s.stopping != stopNone,
		Counters: s.counts.document(), LastFailure: s.lastFailure,
		Operations: s.operationList(), LastOperation: s.lastOperation, Probation: s.probation.document(),
		Listeners: []listenerDocument{}, Numbers: []numbersDocument{}, Generations: []generationDocument{},
	}
	for id, next := range s.sockets.next {
		if next != [2]int{} {
			d.Numbers = append(d.Numbers, numbersDocument{Listener: uint8(id), UDP: next[0], TCP: next[1]})
		}
	}
	for _, l := range s.sockets.all() {
		d.Listeners = append(d.Listeners, l.document())
	}
	for _, g := range s.generations {
		d.Generations = append(d.Generations, s.generationDocument(g))
	}
	d.anchor(d.Time, func(t time.Time) time.Duration { return t.Sub(d.Time) })
	return d
}

func (l *listener) document() listenerDocument {
	d := listenerDocument{ID: l.id, Name: l.name, Port: l.port, Real: l.real, Sets: []setDocument{}}
	for _, set := range l.sets {
		sd := setDocument{Network: set.network, Address: set.address, V6Only: set.v6only, Released: set.released, Shared: set.shared, Sockets: []socketDocument{}}
		for _, sock := range set.sockets {
			sd.Sockets = append(sd.Sockets, socketDocument{Index: sock.index, Bound: sock.bound, Passed: sock.unitName()})
		}
		d.Sets = append(d.Sets, sd)
	}
	return d
}

func (s *Supervisor) generationDocument(g *generation) generationDocument {
	spec := *g.spec
	spec.Payload = nil // may hold private keys
	d := generationDocument{
		ID: g.id, State: g.state, Since: g.since, Spec: &spec, Build: g.build, Version: g.ver,
		Mode: g.mode, Window: g.window, Grace: g.grace, Goodbye: g.goodbye, Deadline: g.deadline, Evicted: g.evicted,
		Wants: []wantDocument{}, Members: []memberDocument{}, Workers: []workerDocument{},
	}
	d.Before, d.Linger = g.before, g.linger
	if g.state < GenerationCurrent {
		d.Trial = g.trial.document()
	}
	if g.image != nil {
		d.Image = g.image.path
	}
	if g.self != nil {
		d.Self = g.self.path
	}
	if g.reason != nil {
		d.Reason = oneLine(g.reason)
	}
	for id, span := range g.limits {
		if d.Limits == nil {
			d.Limits = map[uint8]spanDocument{}
		}
		d.Limits[id] = spanDocument{span.goodbye, span.end}
	}
	for _, w := range g.wants {
		d.Wants = append(d.Wants, wantDocument{Listener: w.listener.id, Name: w.spec.Name, Address: w.address, V6Only: w.v6only})
	}
	for _, m := range g.members {
		d.Members = append(d.Members, memberDocument{Restarts: m.restarts, Failures: m.back.failures, Started: m.back.started, Next: m.next})
	}
	for _, w := range s.workersOf(g) {
		d.Workers = append(d.Workers, w.document())
	}
	return d
}

func (w *worker) document() workerDocument {
	d := workerDocument{
		Place: w.member.index, Member: w.member.w == w, Slot: w.slot, Incarnation: w.incarnation,
		PID: w.proc.PID(), StartTime: w.startTime, State: w.state, Started: w.started, Protocol: w.protocol,
		GraceEnd: w.graceEnd, Drained: w.drained,
	}
	if w.reason != nil {
		d.Reason = oneLine(w.reason)
	}
	return d
}

// document names the counters, so that a build which has another one loses none.
func (c *counts) document() map[string]uint64 {
	d := map[string]uint64{}
	for name, field := range c.byName() {
		d[name] = *field
	}
	return d
}

// restore takes over what counters the document has.
func (c *counts) restore(d map[string]uint64) {
	for name, field := range c.byName() {
		*field = d[name]
	}
}

// encode returns the wire form. What differs only in the moment is equal in
// all other bytes; see [document.settled].
func (d *document) encode() ([]byte, error) { return json.Marshal(d) }
