package supervisor

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/holdfast-quic/holdfast/packetqueue"
	"github.com/holdfast-quic/holdfast/shm"
)

// incarnationGap is how many numbers are skipped after a supervisor was killed:
// more than it can have given to processes since it wrote its document, which
// may have lived and ended without a trace.
const incarnationGap = 1 << 10

var (
	errNobodyAnswers = errors.New("none of the workers answers")
	errUndone        = errors.New("the supervisor was killed while the generation was on its way")
	errDiedMeanwhile = errors.New("it ended while there was no supervisor")
)

// restorer makes a Supervisor of what its predecessor left. It belongs to the
// loop, before that runs.
//
// What lives is asked of the kernel, which generation is current of the
// segment, and only the rest of the document: the document is as old as the last
// burst of events before the end.
type restorer struct {
	s   *Supervisor
	p   *predecessor
	doc *document
	// shift is what has to be added to the document's times.
	shift time.Duration
	now   time.Time
	// generations by number.
	generations map[shm.Generation]*generation
	finish      *generation // the segment says that it is current already
	failed      []*generation
	dead        []*worker
	found       map[socketKey]string // sockets that workers hold, and their addresses
}

// at turns a time of the document into one of this process's clock, which
// nobody can set.
func (r *restorer) at(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return r.now.Add(t.Sub(r.doc.Time) + r.shift)
}

// restore makes s go on where its predecessor ended. With an error nothing has
// happened to the workers.
func (s *Supervisor) restore(p *predecessor) (*restorer, error) {
	r := &restorer{
		s: s, p: p, doc: p.doc, now: time.Now(), generations: map[shm.Generation]*generation{}, found: map[socketKey]string{},
	}
	r.shift = -time.Duration(s.env.monotonic() - p.doc.Monotonic)
	if err := r.collect(); err != nil {
		return nil, err
	}
	if err := r.segment(); err != nil {
		return nil, err
	}
	r.numbers()
	if err := r.listeners(); err != nil {
		return nil, err
	}
	for i := range r.doc.Generations {
		if err := r.generation(&r.doc.Generations[i]); err != nil {
			return nil, err
		}
	}
	if on := r.doc.Probation; on != nil {
		on.Until = r.at(on.Until)
	}
	s.restoreProbation(r.doc.Probation, p.given)
	if err := r.spec(); err != nil {
		return nil, err
	}
	r.slots()
	r.timers()
	return r, nil
}

// collect takes the descriptors that workers gave back. Each one's own doorbell
// comes before what others have for it.
func (r *restorer) collect() (err error) {
	given := r.p.given
	var good []*answer
	for _, a := range r.p.early {
		if a.err != nil || !r.knows(a) {
			continue
		}
		if _, fault := agree(a.m); fault != nil {
			err = fault
			continue
		}
		if first := append(good, a)[0]; sameDescriptor(cmp.Or(given[nameSegment], first.files[resumeSegment]), a.files[resumeSegment]) {
			good = append(good, a)
		}
	}
	if len(good) == 0 && err != nil {
		return err // none of them, so this is the wrong version for this instance
	}
	take := func(a *answer, i int, name string) {
		given.add(name, a.files[i])
		a.files[i] = nil
	}
	for _, a := range good {
		id := shm.Generation(a.m.Generation)
		take(a, resumeSegment, nameSegment)
		take(a, resumePayload, namePayload(id))
		take(a, resumeDoorbell, nameDoorbell(a.slot))
		take(a, resumeHandover, nameHandover(a.slot))
		take(a, resumeImage, nameImage(id))
	}
	for _, a := range good {
		for i, slot := range a.m.Peers {
			take(a, resumeFixed+i, nameDoorbell(shm.SlotID(slot)))
		}
		for i, sock := range a.m.Sockets {
			key := socketKey{sock.Listener, sock.Network, sock.Index}
			take(a, resumeFixed+len(a.m.Peers)+i, nameSocket(key))
			r.found[key] = sock.Address
		}
	}
	return nil
}

// knows reports whether the worker is one of the document, and lives.
func (r *restorer) knows(a *answer) bool {
	for i := range r.doc.Generations {
		g := &r.doc.Generations[i]
		for _, w := range g.Workers {
			if w.Slot == a.slot && uint32(w.Incarnation) == a.m.Incarnation {
				return w.PID == a.m.PID && uint32(g.ID) == a.m.Generation && r.p.processes[w.Incarnation] != nil
			}
		}
	}
	return false
}

// segment attaches the segment and checks that the document fits it.
func (r *restorer) segment() error {
	f := r.p.given.take(nameSegment)
	if f == nil {
		return errNobodyAnswers
	}
	seg, err := shm.Attach(f)
	if err != nil {
		f.Close()
		return err
	}
	r.s.seg = seg
	for _, g := range r.doc.Generations {
		for _, w := range g.Workers {
			if int(w.Slot) >= seg.Geometry().Slots {
				return fmt.Errorf("%w: slot %d of %d", errDocument, w.Slot, seg.Geometry().Slots)
			}
		}
	}
	r.s.slots = newSlots(seg, r.s.log)
	return nil
}

// numbers takes over what is never given twice: what the document says, and
// above all that the segment shows.
func (r *restorer) numbers() {
	s := r.s
	s.nextGeneration, s.nextIncarnation = r.doc.NextGeneration, r.doc.NextIncarnation
	dir := s.seg.Directory()
	for i := range dir.Slots() {
		rec := dir.Record(shm.SlotID(i))
		s.nextGeneration = max(s.nextGeneration, rec.Generation+1)
		s.nextIncarnation = max(s.nextIncarnation, rec.Incarnation+1)
	}
	s.nextGeneration = max(s.nextGeneration, s.seg.Admission().Load().Current+1)
	if !r.p.exec {
		s.nextIncarnation += incarnationGap
	}
	s.started, s.lastReload = r.at(r.doc.Started), r.at(r.doc.LastReload)
	s.inst.pidFile = r.doc.PIDFile
	if r.p.exec && r.doc.Program != "" {
		s.program = r.doc.Program
	}
	s.counts.restore(r.doc.Counters)
	s.lastFailure = r.doc.LastFailure
}

// listeners takes over the listening sockets.
func (r *restorer) listeners() error {
	all := r.s.sockets
	for _, n := range r.doc.Numbers {
		all.next[n.Listener] = [2]int{n.UDP, n.TCP}
	}
	for _, ld := range r.doc.Listeners {
		l := &listener{id: ld.ID, name: ld.Name, port: ld.Port, real: ld.Real}
		all.listeners[l.id] = l
		for _, sd := range ld.Sets {
			set := &socketSet{listener: l, network: sd.Network, address: sd.Address, v6only: sd.V6Only, released: sd.Released, shared: sd.Shared}
			l.sets = append(l.sets, set)
			for _, sock := range sd.Sockets {
				if err := r.socket(set, sock.Index, sock.Bound); err != nil {
					return err
				}
				all.mark(set, sock)
			}
		}
	}
	// What was bound after the document was written: in the kernel's group it
	// takes its share of the packets, so somebody has to read it.
	for _, key := range slices.SortedFunc(maps.Keys(r.found), func(a, b socketKey) int { return cmp.Compare(a.index, b.index) }) {
		if set := all.setOf(key, r.found[key]); set != nil && r.p.given[nameSocket(key)] != nil {
			if err := r.socket(set, key.index, r.found[key]); err != nil {
				return err
			}
		}
	}
	return nil
}

// socket adds one socket to a set, if anybody had it.
func (r *restorer) socket(set *socketSet, index int, bound string) error {
	next := &r.s.sockets.next[set.listener.id][boolInt(set.network == networkTCP)]
	*next = max(*next, index+1)
	f := r.p.given.take(nameSocket(socketKey{set.listener.id, set.network, index}))
	if f == nil {
		f = r.s.sockets.takeKept(nameSocket(socketKey{set.listener.id, set.network, index}), bound)
	}
	if f == nil {
		r.s.log.Warn("a socket is lost", zap.String("listener", set.listener.name), zap.String("address", bound), zap.Int("index", index))
		return nil
	}
	f, err := unpolled(f)
	if err != nil {
		return err
	}
	set.sockets = append(set.sockets, &listenSocket{set: set, index: index, file: f, bound: bound})
	return nil
}

// setOf returns the set that a socket belongs to by its address.
func (s *sockets) setOf(key socketKey, bound string) *socketSet {
	if int(key.listener) >= len(s.listeners) || s.listeners[key.listener] == nil {
		return nil
	}
	for _, set := range s.listeners[key.listener].sets {
		if set.network == key.network && slices.ContainsFunc(set.sockets, func(o *listenSocket) bool { return o.bound == bound }) {
			return set
		}
	}
	return nil
}

// generation takes over one generation and its workers.
func (r *restorer) generation(gd *generationDocument) error {
	s := r.s
	g := &generation{
		id: gd.ID, spec: gd.Spec, state: gd.State, since: r.at(gd.Since), build: gd.Build, ver: gd.Version,
		mode: gd.Mode, window: gd.Window, grace: gd.Grace, goodbye: r.at(gd.Goodbye), deadline: r.at(gd.Deadline), evicted: gd.Evicted,
		before: gd.Before, linger: r.at(gd.Linger), trial: gd.Trial.trial(r.at),
		payload: r.p.given.take(namePayload(gd.ID)),
	}
	if gd.Reason != "" {
		g.reason = errors.New(gd.Reason)
	}
	for id, span := range gd.Limits {
		if g.limits == nil {
			g.limits = map[uint8]drainSpan{}
		}
		g.limits[id] = drainSpan{r.at(span.Goodbye), r.at(span.End)}
	}
	for _, w := range gd.Wants {
		g.wants = append(g.wants, wanted{
			listener: s.sockets.listeners[w.Listener], spec: *gd.listenerSpec(w.Name), address: w.Address, v6only: w.V6Only,
		})
	}
	for i, md := range gd.Members {
		m := &member{index: i, restarts: md.Restarts, back: backoff{failures: md.Failures, started: r.at(md.Started)}, next: r.at(md.Next)}
		g.members = append(g.members, m)
	}
	if err := r.images(g, gd); err != nil {
		return err
	}
	for i := range gd.Workers {
		r.worker(g, &gd.Workers[i])
	}
	r.generations[g.id] = g
	s.generations = append(s.generations, g)
	r.place(g)
	return nil
}

// images takes over the programs of a generation.
func (r *restorer) images(g *generation, gd *generationDocument) (err error) {
	s := r.s
	if f := r.p.given.take(nameImage(g.id)); f != nil {
		g.image = r.image(cmp.Or(gd.Image, f.Name()), f)
	}
	if g.image == nil {
		// None of its workers answers.
		g.image = s.self.hold()
		if len(g.spec.Command) > 0 {
			if img, err := openCommand(g.spec.Command); err == nil {
				g.image.release()
				g.image = img
			}
		}
	}
	if f := r.p.given.take(nameSelf(g.id)); f != nil {
		if g.self, err = newImage(cmp.Or(gd.Self, f.Name()), f); err != nil {
			f.Close()
			return err
		}
		return nil
	}
	if r.p.exec {
		g.self = g.image.hold() // they are one file
	} else {
		g.self = s.self.hold() // who started this one has decided it
	}
	return nil
}

// image makes an image of a descriptor, or returns nil. A worker that may not
// read its own program gives one that can't be read either.
func (r *restorer) image(path string, f *os.File) *image {
	if img, err := newImage(path, f); err == nil {
		return img
	}
	defer f.Close()
	n, err := descriptor(f)
	if err != nil {
		return nil
	}
	again, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", n))
	if err != nil {
		r.s.log.Warn("the program of a worker can't be opened", zap.Error(err))
		return nil
	}
	img, err := newImage(path, again)
	if err != nil {
		again.Close()
		return nil
	}
	return img
}

// place says what becomes of the generation: the segment knows which one is
// current, and one that was on its way is finished or undone.
func (r *restorer) place(g *generation) {
	s := r.s
	current := s.seg.Admission().Load().Current
	switch g.state {
	case GenerationStarting, GenerationReady, GenerationProbed:
		if g.id == current {
			g.state, r.finish = GenerationProbed, g
			s.incoming = g
			return
		}
		if g.reason == nil {
			g.reason = errUndone
		}
		r.failed = append(r.failed, g)
	case GenerationCurrent:
		if current == 0 {
			// The service was being stopped; this start is newer than that.
			g.state = GenerationDraining
			return
		}
		s.current = g
	default:
	}
}

// worker takes over one process.
func (r *restorer) worker(g *generation, wd *workerDocument) {
	s, dir := r.s, r.s.seg.Directory()
	m := g.members[wd.Place]
	proc := r.p.processes[wd.Incarnation]
	if proc == nil {
		if dir.Record(wd.Slot).Incarnation != wd.Incarnation {
			return // reclaimed already
		}
		proc = deadProcess(wd.PID)
	}
	w := &worker{
		gen: g, member: m, slot: wd.Slot, incarnation: wd.Incarnation, state: wd.State, started: r.at(wd.Started), startTime: wd.StartTime,
		protocol: wd.Protocol, graceEnd: r.at(wd.GraceEnd), drained: wd.Drained, proc: proc, quiet: make(chan struct{}),
	}
	if wd.Reason != "" {
		w.reason = errors.New(wd.Reason)
	}
	if wd.Member {
		m.w = w
	}
	s.slots.owners[w.slot] = w
	s.workers[w] = struct{}{}
	s.byPID[proc.PID()] = w
	g.alive++
	w.base = slotTally(s.seg.Counters(w.slot))
	serving := (g.state == GenerationCurrent || g.state == GenerationCanary) && w.state == workerServing
	dir.Restore(w.slot, w.incarnation, g.id, proc.PID(), g.mask(), serving)
	if _, dead := proc.(deadProcess); dead {
		r.dead = append(r.dead, w)
		return
	}
	s.watchExit(w)
}

// spec decides which configuration is the supervisor's own.
func (r *restorer) spec() (err error) {
	s := r.s
	switch {
	case r.finish != nil:
		s.spec = r.finish.spec
	case s.current != nil:
		s.spec = s.current.spec
	default:
		s.spec, err = s.load()
	}
	return err
}

// slots puts right what the segment has of processes that are no more, and
// makes the doorbells that are missing.
func (r *restorer) slots() {
	s, dir := r.s, r.s.seg.Directory()
	s.seg.Admission().Store(s.seg.Admission().Load()) // known as ours from now on
	for i := range dir.Slots() {
		slot := shm.SlotID(i)
		if f := r.p.given.take(nameDoorbell(slot)); f != nil {
			if bell, err := unpolled(f); err == nil {
				s.slots.doorbells[i] = bell
			}
		}
		if f := r.p.given.take(nameHandover(slot)); f != nil {
			if handover, err := unpolled(f); err == nil {
				s.slots.handover[i] = handover
			}
		}
		if s.slots.owners[i] != nil && s.slots.doorbells[i] == nil {
			bell, err := packetqueue.NewDoorbell()
			if err != nil {
				s.log.Error("make a doorbell", zap.Error(err))
				continue
			}
			s.slots.doorbells[i] = bell
		}
		if rec := dir.Record(slot); s.slots.owners[i] == nil && rec.Incarnation != 0 {
			r.stranger(slot, rec)
		}
	}
	// Probes of the one before are over, whatever they held.
	held := map[uint64]bool{}
	for w := range s.workers {
		held[packetqueue.Token(uint16(w.slot), uint32(w.incarnation))] = true
	}
	for _, slot := range s.slots.inUse() {
		packetqueue.ReleaseStale(s.seg.Queue(slot), func(token uint64) bool { return held[token] })
	}
}

// stranger takes over a process that was started after the document was
// written. It has served nobody, or for a moment, so it is ended.
func (r *restorer) stranger(slot shm.SlotID, rec shm.Record) {
	s := r.s
	g := r.generations[rec.Generation]
	if g == nil {
		g = &generation{id: rec.Generation, spec: s.spec, state: GenerationFailed, since: r.now, reason: errUndone, grace: abandonGrace}
		r.generations[g.id] = g
		s.generations = append(s.generations, g)
		slices.SortFunc(s.generations, func(a, b *generation) int { return cmp.Compare(a.id, b.id) })
	}
	w := &worker{
		gen: g, member: &member{}, slot: slot, incarnation: rec.Incarnation, state: workerStopping, started: r.now,
		reason: errUndone, proc: deadProcess(rec.PID), quiet: make(chan struct{}), graceEnd: r.now.Add(abandonGrace + killSlack),
	}
	s.slots.owners[slot] = w
	s.workers[w] = struct{}{}
	g.alive++
	// A number alone is nobody's name: it has to be a worker of ours.
	if rec.PID > 0 && s.env.workerOf(rec.PID, s.opt.RuntimeDir) {
		if proc, err := s.env.find(rec.PID, 0); err == nil {
			w.proc = proc
			s.byPID[rec.PID] = w
			s.seg.Directory().Restore(slot, rec.Incarnation, rec.Generation, rec.PID, rec.Listeners, false)
			s.watchExit(w)
			return
		}
	}
	r.dead = append(r.dead, w)
}

// timers arms again what was to happen later. Everything happens in the loop,
// once it runs.
func (r *restorer) timers() {
	s := r.s
	for _, g := range s.generations {
		if g.state == GenerationDraining && !g.goodbye.IsZero() {
			s.armDrain(g)
		}
		for _, m := range g.members {
			switch {
			case g != s.current && g != r.finish && g.state != GenerationCanary:
				m.next = time.Time{}
			case !m.next.IsZero():
				s.startMember(g, m, time.Until(m.next))
			case m.w == nil:
				s.replace(g, m, errDiedMeanwhile)
			}
		}
	}
	for w := range s.workers {
		switch {
		case w.state == workerStopping && !w.graceEnd.IsZero():
			s.startGrace(w, time.Until(w.graceEnd))
		case w.state == workerWelcomed:
			s.armReady(w, time.Until(w.started.Add(w.gen.spec.ReadyTimeout)))
		}
	}
}
