package supervisor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/holdfast-quic/holdfast/shm"
)

// maxDocument is far above what an instance of the largest geometry writes.
const maxDocument = 64 << 20

var (
	// errDocument says that something is no state document, or contradicts itself.
	errDocument = errors.New("not a usable state document")
	// errNewerDocument says that a later version wrote it.
	errNewerDocument = errors.New("the state was written by a newer version of Holdfast")
)

// decodeDocument reads a state document and checks that it is of one piece, so
// that what is made of it later can't fail halfway. The file has been in reach of
// others since it was written, so nothing in it is taken for granted.
func decodeDocument(wire []byte) (*document, error) {
	if len(wire) > maxDocument {
		return nil, fmt.Errorf("%w: %d bytes", errDocument, len(wire))
	}
	var head struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(wire, &head); err != nil {
		return nil, fmt.Errorf("%w: %w", errDocument, err)
	}
	switch {
	case head.Version > documentNewest:
		return nil, fmt.Errorf("%w: it has version %d, this one reads up to %d", errNewerDocument, head.Version, documentNewest)
	case head.Version < documentOldest:
		return nil, fmt.Errorf("%w: it has version %d, this one reads from %d on", errDocument, head.Version, documentOldest)
	}
	d := &document{}
	if err := json.Unmarshal(wire, d); err != nil {
		return nil, fmt.Errorf("%w: %w", errDocument, err)
	}
	if err := d.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", errDocument, err)
	}
	return d, nil
}

// check reports the first contradiction.
func (d *document) check() error {
	switch {
	case d.BootID == "":
		return errors.New("no boot ID")
	case d.Monotonic < 0, d.Time.IsZero():
		return errors.New("no time")
	case d.NextGeneration == 0, d.NextIncarnation == 0:
		return errors.New("no numbers")
	}
	listeners, err := d.checkListeners()
	if err != nil {
		return err
	}
	return d.checkGenerations(listeners)
}

func (d *document) checkListeners() (known map[uint8]bool, err error) {
	known = map[uint8]bool{}
	for _, n := range d.Numbers {
		if n.Listener >= maxListeners || n.UDP < 0 || n.TCP < 0 {
			return nil, fmt.Errorf("numbers of listener %d", n.Listener)
		}
	}
	sockets := map[socketKey]bool{}
	for _, l := range d.Listeners {
		if l.ID >= maxListeners || known[l.ID] {
			return nil, fmt.Errorf("listener %d is there twice, or out of range", l.ID)
		}
		known[l.ID] = true
		for i, set := range l.Sets {
			if set.Network != networkUDP && set.Network != networkTCP {
				return nil, fmt.Errorf("listener %d: network %q", l.ID, set.Network)
			}
			if slices.ContainsFunc(l.Sets[:i], func(o setDocument) bool { return o.Network == set.Network && o.Address == set.Address }) {
				return nil, fmt.Errorf("listener %d: %s %s twice", l.ID, set.Network, set.Address)
			}
			for _, sock := range set.Sockets {
				key := socketKey{l.ID, set.Network, sock.Index}
				if sock.Index < 0 || sockets[key] {
					return nil, fmt.Errorf("listener %d: %s socket %d twice, or out of range", l.ID, set.Network, sock.Index)
				}
				sockets[key] = true
			}
		}
	}
	return known, nil
}

func (d *document) checkGenerations(listeners map[uint8]bool) error {
	var last shm.Generation
	current := false
	slots, incarnations := map[shm.SlotID]bool{}, map[shm.Incarnation]bool{}
	for i := range d.Generations {
		g := &d.Generations[i]
		if g.ID <= last || g.ID >= d.NextGeneration {
			return fmt.Errorf("generation %d is out of order", g.ID)
		}
		last = g.ID
		if g.State == GenerationCurrent && current {
			return errors.New("two current generations")
		}
		current = current || g.State == GenerationCurrent
		if err := g.check(listeners); err != nil {
			return fmt.Errorf("generation %d: %w", g.ID, err)
		}
		for _, w := range g.Workers {
			if slots[w.Slot] || incarnations[w.Incarnation] {
				return fmt.Errorf("slot %d or incarnation %d is there twice", w.Slot, w.Incarnation)
			}
			slots[w.Slot], incarnations[w.Incarnation] = true, true
			if w.Incarnation >= d.NextIncarnation {
				return fmt.Errorf("incarnation %d is out of order", w.Incarnation)
			}
		}
	}
	return nil
}

func (g *generationDocument) check(listeners map[uint8]bool) error {
	if g.Spec == nil {
		return errors.New("no configuration")
	}
	// What a later version has more of in a configuration has its default.
	spec, err := g.Spec.withDefaults()
	if err != nil {
		return err
	}
	g.Spec = spec
	if len(g.Members) != g.Spec.Workers {
		return fmt.Errorf("%d places for %d workers", len(g.Members), g.Spec.Workers)
	}
	for _, w := range g.Wants {
		if !listeners[w.Listener] {
			return fmt.Errorf("listener %d is not there", w.Listener)
		}
		if g.listenerSpec(w.Name) == nil {
			return fmt.Errorf("listener %q is not configured", w.Name)
		}
	}
	placed := map[int]bool{}
	for _, w := range g.Workers {
		switch {
		case w.Place < 0 || w.Place >= len(g.Members):
			return fmt.Errorf("place %d of %d", w.Place, len(g.Members))
		case w.Slot >= probeSlot, w.Incarnation == 0, w.PID <= 0:
			return fmt.Errorf("worker in slot %d, incarnation %d, process %d", w.Slot, w.Incarnation, w.PID)
		case w.Member && placed[w.Place]:
			return fmt.Errorf("two workers in place %d", w.Place)
		}
		placed[w.Place] = placed[w.Place] || w.Member
	}
	return nil
}

func (g *generationDocument) listenerSpec(name string) *ListenerSpec {
	for i := range g.Spec.Listeners {
		if g.Spec.Listeners[i].Name == name {
			return &g.Spec.Listeners[i]
		}
	}
	return nil
}

// settled is the encoding without what differs from moment to moment, to tell
// whether anything has changed.
func (d *document) settled() ([]byte, error) {
	still := *d
	still.Monotonic, still.Time = 0, still.Started
	return still.encode()
}

// sameDocument reports whether two encodings of settled documents are equal.
func sameDocument(a, b []byte) bool { return a != nil && bytes.Equal(a, b) }
