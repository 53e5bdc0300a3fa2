package supervisor

import (
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/holdfast-quic/holdfast/shm"
)

// settling is the first part of a probation, which belongs to the upgrade: a
// program that crashes as soon as it serves fails it, and has not become the
// supervisor yet.
const settling = time.Second

// probation is the time after an upgrade in which a crash of a new worker brings
// back what served before. It keeps all that this takes, because the generation
// before may have ended by then.
type probation struct {
	generation shm.Generation // that is watched
	operation  uint64         // the upgrade
	until      time.Time      // zero: no crash is looked at, only whether the supervisor follows
	timer      *timer

	before  shm.Generation // that served before
	spec    *Spec          // of it
	payload *os.File       // of it, owned
	image   *image         // held
	self    *image         // held
}

// probationDocument is what the next supervisor needs of a probation besides
// the descriptors.
type probationDocument struct {
	Generation shm.Generation `json:"generation"`
	Operation  uint64         `json:"operation"`
	Until      time.Time      `json:"until"`
	Before     shm.Generation `json:"before"`
	Spec       *Spec          `json:"spec"` // without Payload
	Image      string         `json:"image"`
	Self       string         `json:"self"`
}

// Names of the descriptors of a probation.
const (
	nameBeforeImage   = "before.image"
	nameBeforeSelf    = "before.self"
	nameBeforePayload = "before.payload"
)

// startProbation watches g, which an upgrade has made current in the place of
// old. It reports whether crashes matter.
func (s *Supervisor) startProbation(g, old *generation, op *operation) bool {
	s.endProbation()
	if op.Kind != OperationUpgrade && op.Kind != OperationPromote || old == nil {
		return false
	}
	spec, err := old.wholeSpec()
	if err != nil {
		s.log.Error("no probation", zap.Error(err))
		return false
	}
	p := &probation{
		generation: g.id, operation: op.ID,
		before: old.id, spec: spec, image: old.image.hold(), self: old.self.hold(),
	}
	if p.payload, err = sealedFile("holdfast-config", spec.Payload); err != nil {
		s.log.Warn("the configuration before this one does not outlive the supervisor", zap.Error(err))
	}
	if g.spec.Probation > 0 {
		p.until = time.Now().Add(g.spec.Probation)
	}
	s.watchProbation(p)
	return g.spec.Probation > 0
}

func (s *Supervisor) watchProbation(p *probation) {
	s.probation = p
	if p.until.IsZero() {
		return
	}
	p.timer = s.after(time.Until(p.until), func() {
		s.log.Info("probation is over", zap.Uint32("generation", uint32(p.generation)))
		s.endProbation()
		s.noteGood()
	})
}

// endProbation lets go of what served before.
func (s *Supervisor) endProbation() {
	p := s.probation
	if p == nil {
		return
	}
	s.probation = nil
	p.timer.stop()
	p.image.release()
	p.self.release()
	if p.payload != nil {
		p.payload.Close()
	}
}

// wholeSpec returns the Spec with its Payload, which a supervisor that took the
// generation over has in a file only.
func (g *generation) wholeSpec() (*Spec, error) {
	if g.spec.Payload != nil || g.payload == nil {
		return g.spec, nil
	}
	spec := *g.spec
	var err error
	spec.Payload, err = readWhole(g.payload)
	return &spec, err
}

func readWhole(f *os.File) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	content := make([]byte, info.Size())
	if _, err := f.ReadAt(content, 0); err != nil && err != io.EOF {
		return nil, err
	}
	return content, nil
}

// crashed: a worker that served has ended by itself. A generation on probation
// is given up for that.
func (s *Supervisor) crashed(w *worker) {
	p := s.probation
	if p == nil || p.until.IsZero() || s.stopping != stopNone || w.gen != s.current || w.gen.id != p.generation {
		return
	}
	err := fmt.Errorf("a worker of generation %d ended %v after the handover: %w",
		w.gen.id, time.Since(w.gen.since).Round(time.Millisecond), w.reason)
	s.goBack(err)
}

// goBack gives up the generation on probation: what served before does so
// again. The upgrade has failed, even if it was done already.
func (s *Supervisor) goBack(why error) *operation {
	p := s.probation
	if op := s.findOperation(p.operation); op != nil && op != s.op {
		op.State, op.Reason, op.Code = OperationFailed, oneLine(why), codeOf(why)
		s.failed(op, why)
	}
	back := s.newOperation(OperationRollback)
	back.spec, back.image, back.self = p.spec, p.image.hold(), p.self.hold()
	back.Because = oneLine(why)
	s.log.Warn("rolling back", zap.Uint64("operation", back.ID), zap.String("program", back.image.path), zap.String("reason", back.Because))
	s.endProbation()
	s.queue = slices.Insert(s.queue, 0, back)
	if s.op != nil && s.op.ID == p.operation {
		s.finishOp(why) // begins the next one
		return back
	}
	s.nextOp()
	return back
}

// status describes a probation in which crashes matter, or returns nil.
func (p *probation) status() *ProbationStatus {
	if p == nil || p.until.IsZero() {
		return nil
	}
	return &ProbationStatus{Generation: p.generation, Until: p.until}
}

// document returns what to keep of a probation, or nil.
func (p *probation) document() *probationDocument {
	if p == nil || p.payload == nil {
		return nil
	}
	spec := *p.spec
	spec.Payload = nil // may hold private keys
	return &probationDocument{
		Generation: p.generation, Operation: p.operation, Until: p.until, Before: p.before,
		Spec: &spec, Image: p.image.path, Self: p.self.path,
	}
}

// addProbation adds the descriptors that go with the document.
func (d descriptors) addProbation(p *probation) {
	if p == nil || p.payload == nil {
		return
	}
	d[nameBeforePayload], d[nameBeforeImage] = p.payload, p.image.file
	if !p.self.same(p.image) {
		d[nameBeforeSelf] = p.self.file
	}
}

// restoreProbation goes on with the probation of the supervisor before this
// one. Without all that it takes there is none: after that one was killed.
func (s *Supervisor) restoreProbation(p *probationDocument, d descriptors) {
	payload, program, own := d.take(nameBeforePayload), d.take(nameBeforeImage), d.take(nameBeforeSelf)
	restored, err := p.restore(payload, program, own)
	if restored == nil {
		for _, f := range []*os.File{payload, program, own} {
			if f != nil {
				f.Close()
			}
		}
		if p != nil {
			s.log.Warn("no more probation", zap.Uint32("generation", uint32(p.Generation)), zap.Error(err))
		}
		return
	}
	s.watchProbation(restored)
}

// restore makes a probation that owns the files, or none.
func (p *probationDocument) restore(payload, program, own *os.File) (*probation, error) {
	if p == nil || p.Spec == nil || payload == nil || program == nil {
		return nil, nil
	}
	spec := *p.Spec
	var err error
	if spec.Payload, err = readWhole(payload); err != nil {
		return nil, err
	}
	img, err := newImage(p.Image, program)
	if err != nil {
		return nil, err
	}
	self := img.hold()
	if own != nil {
		if self, err = newImage(p.Self, own); err != nil {
			return nil, err
		}
		img.users--
	}
	return &probation{
		generation: p.Generation, operation: p.Operation, until: p.Until,
		before: p.Before, spec: &spec, payload: payload, image: img, self: self,
	}, nil
}
