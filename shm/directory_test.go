package shm

import (
	"sync"
	"testing"
	"time"
)

func TestDirectoryLife(t *testing.T) {
	s, _ := segment(t, 16, 0)
	d := s.Directory()
	o := Owner{Slot: 3, Incarnation: 7}
	if d.Alive(o) || d.Record(3) != (Record{}) {
		t.Error("a new directory has somebody in it")
	}
	v := d.Version()
	d.Assign(3, 7, 2, 0b101)
	d.SetPID(3, 4711)
	if !d.Alive(o) || d.Version() == v {
		t.Error("assigned, but not alive")
	}
	if d.Alive(Owner{3, 6}) || d.Alive(Owner{4, 7}) || d.Alive(Owner{60000, 7}) || d.Alive(Owner{}) || d.Alive(Owner{4, 0}) {
		t.Error("a stranger is alive")
	}
	d.SetPhase(3, PhaseServing)
	d.Beat(3, 99)
	d.SetConns(3, 5, 6)
	d.SetServing(3, true)
	want := Record{
		Incarnation: 7, Generation: 2, PID: 4711, Phase: PhaseServing, Listeners: 5,
		Serving: true, Alive: true, Heartbeat: 99, QUICConns: 5, TCPConns: 6,
	}
	if r := d.Record(3); r != want {
		t.Errorf("%+v", r)
	}
	if !d.Alive(o) {
		t.Error("serving hides life")
	}
	d.SetListeners(3, 1)
	mustCheck(t, s)
	d.MarkDead(3)
	if r := d.Record(3); d.Alive(o) || r.Serving || r.Alive || r.Incarnation != 7 || r.Listeners != 1 {
		t.Errorf("dead: %+v", r)
	}
	d.SetServing(3, true)
	if d.Record(3).Serving {
		t.Error("a dead slot serves")
	}
	d.Clear(3)
	if d.Record(3) != (Record{}) {
		t.Error("cleared slot has a record")
	}
	mustCheck(t, s)
}

func TestAliveRoute(t *testing.T) {
	s, _ := segment(t, 16, 0)
	d := s.Directory()
	d.Assign(3, 0x5000007, 2, 1)
	if o, ok := d.AliveRoute(3, 7); !ok || o != (Owner{3, 0x5000007}) {
		t.Errorf("%v, %v", o, ok)
	}
	for _, r := range [][2]uint32{{3, 8}, {3, 0x5000007}, {4, 7}, {4, 0}, {16, 7}, {65535, 7}} {
		if o, ok := d.AliveRoute(uint16(r[0]), r[1]); ok || o != (Owner{}) {
			t.Errorf("%v: %v", r, o)
		}
	}
	d.MarkDead(3)
	if _, ok := d.AliveRoute(3, 7); ok {
		t.Error("dead, but routed to")
	}
}

func TestRecordsAreOfOneIncarnation(t *testing.T) {
	s, _ := segment(t, 16, 0)
	d := s.Directory()
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range 20_000 {
			d.Assign(1, Incarnation(i+1), Generation(i+1), uint64(i+1))
			d.MarkDead(1)
		}
	})
	for range 20_000 {
		if r := d.Record(1); r.Alive && (uint64(r.Generation) != uint64(r.Incarnation) || r.Listeners != uint64(r.Incarnation)) {
			t.Fatalf("%+v", r)
		}
	}
	wg.Wait()
}

func TestPreconditionsPanic(t *testing.T) {
	s, _ := segment(t, 16, 0)
	for name, f := range map[string]func(){
		"slot":          func() { s.Directory().Record(16) },
		"incarnation 0": func() { s.Directory().Assign(1, 0, 1, 1) },
		"queue":         func() { s.Queue(16) },
		"counters":      func() { s.Counters(16) },
		"canary":        func() { s.Admission().Store(Choice{Current: 1, Canary: 40000}) },
		"same canary":   func() { s.Admission().Store(Choice{Current: 1, Canary: 1}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

func TestAdmission(t *testing.T) {
	s, _ := segment(t, 16, 0)
	a := s.Admission()
	if a.Load() != (Choice{}) {
		t.Error("somebody is admitted to from the start")
	}
	for _, c := range []Choice{
		{Current: 1},
		{Current: 1<<32 - 1},
		{Current: 5, Canary: 6, Share: 65535},
		{Current: 6, Canary: 5, Share: 1},
		{Current: 70000, Canary: 70000 + 32767, Share: 300},
		{Current: 70000, Canary: 70000 - 32767},
	} {
		a.Store(c)
		if got := a.Load(); got != c {
			t.Errorf("stored %+v, loaded %+v", c, got)
		}
	}
	c := Choice{Current: 1, Canary: 2, Share: 3277} // 5 %
	n := 0
	for i := range 100_000 {
		h := s.Table().Hash(testID(i))
		first, again := c.Pick(h), c.Pick(h)
		if first != again {
			t.Fatal("a retransmit goes elsewhere")
		}
		if first == 2 {
			n++
		}
	}
	if n < 4700 || n > 5300 {
		t.Errorf("%d of 100000 went to the canary", n)
	}
	if (Choice{Current: 1}).Pick(0) != 1 || (Choice{Current: 1, Canary: 2}).Pick(0) != 1 {
		t.Error("a share of nothing picked the canary")
	}
}

func TestCounters(t *testing.T) {
	s, _ := segment(t, 16, 0)
	names := make(map[string]bool)
	for c := range NumCounters {
		s.Counters(0).Add(c, 1)
		s.Counters(15).Add(c, uint64(c))
		s.SupervisorCounters().Add(c, 1000)
		names[c.String()] = true
	}
	for c, n := range s.Totals() {
		if n != uint64(c)+1001 {
			t.Errorf("%v: %d", Counter(c), n)
		}
	}
	if len(names) != int(NumCounters) || len(counterNames) != int(QueueDelay) || Counter(-1).String() != "counter(-1)" {
		t.Errorf("names: %v", names)
	}
	mustCheck(t, s)
}

func TestQueueDelayBuckets(t *testing.T) {
	for d, want := range map[time.Duration]Counter{
		-time.Second: 0, 0: 0, 999 * time.Nanosecond: 0, time.Microsecond: 1, 2 * time.Microsecond: 2,
		3 * time.Microsecond: 2, 4 * time.Microsecond: 3, time.Millisecond: 10, 16 * time.Millisecond: 14,
		17 * time.Millisecond: 15, time.Hour: 15,
	} {
		if c := QueueDelayCounter(d); c != QueueDelay+want {
			t.Errorf("%v: bucket %d, want %d", d, c-QueueDelay, want)
		}
	}
}

func TestRestore(t *testing.T) {
	s, _ := segment(t, 64, 0)
	d := s.Directory()
	d.Assign(3, 7, 2, 5)
	d.SetPID(3, 99)
	d.SetPhase(3, PhaseServing)
	d.Beat(3, 1234)
	d.SetConns(3, 8, 9)
	before := d.Record(3)
	before.Serving = true

	// Another supervisor, which has written nothing yet, over the same region;
	// the identity was damaged meanwhile.
	again, err := Open(s.region)
	if err != nil {
		t.Fatal(err)
	}
	again.view.Store64(again.at.directory+directoryHead+3*recordBytes+recordIdentity, 0x1234567890)
	e := again.Directory()
	version := e.Version()
	e.Restore(3, 7, 2, 99, 5, true)
	if got := e.Record(3); got != before {
		t.Errorf("is %+v, was %+v", got, before)
	}
	if e.Version() == version {
		t.Error("readers are not told")
	}
	if !d.Alive(Owner{Slot: 3, Incarnation: 7}) {
		t.Error("not alive")
	}
	again.view.Store64(again.at.directory+directoryHead+3*recordBytes+recordListeners, 77)
	if n := again.Repair(); n != 1 || e.Record(3).Listeners != 5 {
		t.Errorf("repaired %d words: %+v", n, e.Record(3))
	}
}
