package shm

import (
	"fmt"
	"os"
	"time"

	"github.com/edsrzf/mmap-go"

	"github.com/holdfast-quic/holdfast/internal/mem"
)

// Segment is one mapping of the shared segment. Its parts may be used from any
// number of goroutines until Close.
type Segment struct {
	file    *os.File // nil on plain bytes; kept so that the descriptor stays open
	mapping mmap.MMap
	region  []byte
	view    mem.View

	header header
	page   [headerChecksum/8 + 1]uint64 // the header as it was when opened
	at     regions

	directory Directory
	admission Admission
	table     Table
	counters  []Counters // one per slot, then the supervisor's
}

// Open returns a Segment over plain bytes that Format wrote, aligned to 8. The
// caller keeps region alive and unmoved. Errors: [ErrNotSegment],
// [ErrABIVersion], [ErrGeometry], wrapped.
func Open(region []byte) (*Segment, error) {
	h, err := readHeader(region, int64(len(region)))
	if err != nil {
		return nil, fmt.Errorf("open segment: %w", err)
	}
	return newSegment(region, h)
}

func newSegment(region []byte, h header) (*Segment, error) {
	v, err := mem.NewView(region)
	if err != nil {
		return nil, fmt.Errorf("open segment: %w", err)
	}
	g, at := h.geometry, h.geometry.regions()
	s := &Segment{region: region, view: v, header: h, at: at}
	for i := range s.page {
		s.page[i] = v.Load64(i * 8)
	}
	s.directory.init(v.Sub(at.directory, at.counters-at.directory), g.Slots)
	s.admission.view = v.Sub(at.admission, admissionBytes)
	s.table.init(v.Sub(at.table, at.queues-at.table), g, h.secret, &s.directory)
	s.counters = make([]Counters, g.Slots+1)
	for i := range s.counters {
		s.counters[i].row = v.Sub(at.counters+i*counterRowBytes, counterRowBytes)
	}
	return s, nil
}

// Close unmaps the segment and closes its file.
//
// Preconditions: nothing that was obtained from s is in use or will be used
// again; a late access would fault.
func (s *Segment) Close() error {
	if s.file == nil {
		return nil
	}
	err := s.mapping.Unmap()
	if cerr := s.file.Close(); err == nil {
		err = cerr
	}
	s.file = nil
	if err != nil {
		return fmt.Errorf("close segment: %w", err)
	}
	return nil
}

// File returns the descriptor to hand to other processes, nil for a segment on
// plain bytes. It stays the property of s.
func (s *Segment) File() *os.File { return s.file }

// Geometry returns the sizes of the segment.
func (s *Segment) Geometry() Geometry { return s.header.geometry }

// Created returns when the segment was formatted, by the wall clock.
func (s *Segment) Created() time.Time { return s.header.created }

// Directory returns the worker slots.
func (s *Segment) Directory() *Directory { return &s.directory }

// Admission returns the choice of the generations that take new connections.
func (s *Segment) Admission() *Admission { return &s.admission }

// Table returns the connection-ID table.
func (s *Segment) Table() *Table { return &s.table }

// Queue returns the region of slot's packet queue: page-aligned in a mapped
// segment, zero until first used, at least the lanes of the geometry and their
// heads. It aliases the segment.
//
// Preconditions: slot is in the geometry.
func (s *Segment) Queue(slot SlotID) []byte {
	s.mustHave(slot)
	return s.view.Bytes(s.at.queues+int(slot)*s.at.queue, s.at.queue)
}

// Counters returns the row of slot. Only the worker in that slot adds to it.
//
// Preconditions: slot is in the geometry.
func (s *Segment) Counters(slot SlotID) *Counters {
	s.mustHave(slot)
	return &s.counters[slot]
}

// SupervisorCounters returns the row that only the supervisor adds to.
func (s *Segment) SupervisorCounters() *Counters { return &s.counters[len(s.counters)-1] }

// Totals returns each counter summed over all slots and the supervisor. Rows
// outlive their workers, so a total never goes down.
func (s *Segment) Totals() [NumCounters]uint64 {
	var sum [NumCounters]uint64
	for i := range s.counters {
		for c := range NumCounters {
			sum[c] += s.counters[i].Get(c)
		}
	}
	return sum
}

func (s *Segment) mustHave(slot SlotID) {
	if int(slot) >= s.header.geometry.Slots {
		panic(fmt.Sprintf("shm: slot %d of %d", slot, s.header.geometry.Slots))
	}
}
