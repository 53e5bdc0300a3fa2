package packetqueue

import (
	"errors"
	"math/rand/v2"
	"testing"
)

// TestAgainstModel runs random operations on a queue and on a model of it, in
// which a lane is a slice.
func TestAgainstModel(t *testing.T) {
	rounds := 60
	if testing.Short() {
		rounds = 10
	}
	for round := range rounds {
		seed := rand.Uint64()
		rnd := rand.New(rand.NewPCG(seed, uint64(round)))
		m := newModel(t, rnd)
		for range 3000 {
			m.step()
		}
		m.finish()
		if t.Failed() {
			t.Fatalf("seed %d, round %d", seed, round)
		}
	}
}

const modelChannels = 3

type modelLane struct {
	p        *Producer
	channel  uint8
	id       int
	sent     int // numbers below it are pushed
	read     int // numbers below it are read
	released bool
}

type model struct {
	t         *testing.T
	rnd       *rand.Rand
	region    []byte
	lanes     []*modelLane // by id
	consumers [modelChannels]*Consumer
	record    Record
}

func newModel(t *testing.T, rnd *rand.Rand) *model {
	m := &model{t: t, rnd: rnd, region: newRegion(t, 5, 4096)}
	for ch := range m.consumers {
		m.consumers[ch] = mustOpen(t, m.region, uint8(ch))
	}
	return m
}

func (m *model) open() []*modelLane {
	var open []*modelLane
	for _, l := range m.lanes {
		if !l.released {
			open = append(open, l)
		}
	}
	return open
}

func (m *model) pending(ch uint8) (n int) {
	for _, l := range m.lanes {
		if l.channel == ch {
			n += l.sent - l.read
		}
	}
	return n
}

func (m *model) step() {
	open := m.open()
	ch := uint8(m.rnd.IntN(modelChannels))
	c := m.consumers[ch]
	switch op := m.rnd.IntN(100); {
	case op < 4:
		l := &modelLane{id: len(m.lanes), channel: ch}
		p, err := Lease(m.region, uint64(l.id+1), ch)
		if err != nil {
			if !errors.Is(err, ErrNoLane) || len(open) == 0 && m.pending(0)+m.pending(1)+m.pending(2) == 0 {
				m.t.Fatal("lease:", err)
			}
			return
		}
		l.p = p
		m.lanes = append(m.lanes, l)
	case op < 50 && len(open) > 0:
		l := open[m.rnd.IntN(len(open))]
		numbered(&m.record, l.id, l.sent, m.rnd.IntN(4096/2-recordHeader))
		switch err := l.p.Push(&m.record); {
		case err == nil:
			l.sent++
		case !errors.Is(err, ErrFull) || l.sent == l.read && m.published(l):
			m.t.Fatalf("push to a lane with %d records: %v", l.sent-l.read, err)
		}
	case op < 52 && len(open) > 0:
		l := open[m.rnd.IntN(len(open))]
		l.p.Release()
		l.released = true
	case op < 90:
		m.next(ch)
	case op < 95:
		c.Done()
	case op < 99:
		if armed := c.Arm(); armed != (m.pending(ch) == 0) {
			m.t.Fatalf("arm says %v with %d records pending", armed, m.pending(ch))
		}
		if m.rnd.IntN(2) == 0 {
			c.Disarm()
		}
	default:
		if got, want := c.Pending(), m.pending(ch); got != want {
			m.t.Fatalf("%d pending, want %d", got, want)
		}
	}
}

// published says whether the consumer has given all space of l back.
func (m *model) published(l *modelLane) bool { return l.p.q.empty(l.p.index) }

func (m *model) next(ch uint8) {
	var r Record
	if !m.consumers[ch].Next(&r) {
		if n := m.pending(ch); n != 0 {
			m.t.Fatalf("nothing to read on channel %d, %d pending", ch, n)
		}
		return
	}
	id, number, err := numberOf(&r)
	if err != nil || id >= len(m.lanes) {
		m.t.Fatal("read:", id, number, err)
	}
	l := m.lanes[id]
	if l.channel != ch || l.read != number || number >= l.sent {
		m.t.Fatalf("read record %d of lane %d on channel %d; want record %d, %d were pushed on channel %d",
			number, id, ch, l.read, l.sent, l.channel)
	}
	l.read++
}

func (m *model) finish() {
	for _, l := range m.open() {
		l.p.Release()
	}
	for ch, c := range m.consumers {
		for m.pending(uint8(ch)) > 0 {
			m.next(uint8(ch))
		}
		if !c.Arm() || c.Bad() != 0 {
			m.t.Errorf("channel %d: not idle at the end, %d bad", ch, c.Bad())
		}
	}
	expectClean(m.t, m.region)
	if Pending(m.region) != 0 {
		m.t.Error("pending at the end")
	}
	for i := range 5 {
		mustLease(m.t, m.region, uint64(i+1), 0) // every lane is free again
	}
}
