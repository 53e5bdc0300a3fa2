package connid

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

var testRoute = Route{Slot: 5, Incarnation: 6}

func TestGeneratorUsesEveryNonceOnce(t *testing.T) {
	r := testRouter(t)
	g := NewGenerator(r, testRoute, Range{10, 13}, nil)
	g.Add(Range{20, 22})
	if g.Left() != 5 {
		t.Fatalf("Left = %d, want 5", g.Left())
	}
	for _, nonce := range []uint64{10, 11, 12, 20, 21} {
		want, err := r.ID(testRoute, nonce)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := g.Generate(); err != nil || got != want {
			t.Errorf("Generate = %v, %v; want the connection ID of nonce %d", got, err, nonce)
		}
	}
	for range 2 {
		if id, err := g.Generate(); !errors.Is(err, ErrExhausted) {
			t.Errorf("Generate on nothing = %v, %v; want ErrExhausted", id, err)
		}
	}
	g.Add(Range{30, 31})
	if _, err := g.Generate(); err != nil {
		t.Errorf("Generate after Add: %v", err)
	}
}

func TestGeneratorAsksOnceAtHalf(t *testing.T) {
	asked := 0
	g := NewGenerator(testRouter(t), testRoute, Range{0, 10}, func() { asked++ })
	generate := func(n int) {
		t.Helper()
		for range n {
			if _, err := g.Generate(); err != nil {
				t.Fatal(err)
			}
		}
	}
	expect := func(want int, when string) {
		t.Helper()
		if asked != want {
			t.Fatalf("asked %d times %s, want %d", asked, when, want)
		}
	}
	generate(4)
	expect(0, "with 6 of 10 left")
	generate(1)
	expect(1, "with 5 of 10 left")
	generate(3)
	expect(1, "before the answer")
	g.Add(Range{10, 20}) // 2 + 10
	generate(5)
	expect(1, "with 7 of 12 left")
	generate(1)
	expect(2, "with 6 of 12 left")
	g.Add(Range{}) // the request came to nothing
	generate(2)
	expect(2, "with 4 of 6 left")
	generate(1)
	expect(3, "with 3 of 6 left")
	generate(3)
	if _, err := g.Generate(); !errors.Is(err, ErrExhausted) {
		t.Fatalf("Generate: error %v, want ErrExhausted", err)
	}
	expect(3, "while the third request is open")
	g.Add(Range{})
	_, _ = g.Generate() // fails; only the request counts
	expect(4, "when there is nothing and no open request")
}

func TestGeneratorAsksAtOnceWithoutFirstRange(t *testing.T) {
	asked := 0
	g := NewGenerator(testRouter(t), testRoute, Range{}, func() { asked++ })
	if _, err := g.Generate(); !errors.Is(err, ErrExhausted) || asked != 1 {
		t.Errorf("Generate: error %v, asked %d times; want ErrExhausted, once", err, asked)
	}
}

func TestGeneratorLeavesOutWhatItHad(t *testing.T) {
	g := NewGenerator(testRouter(t), testRoute, Range{10, 20}, nil)
	for _, r := range []Range{{10, 20}, {0, 10}, {5, 15}, {20, 20}, {30, 20}} {
		g.Add(r)
		if g.Left() != 10 {
			t.Fatalf("after Add(%v): Left = %d, want 10", r, g.Left())
		}
	}
	if g.Add(Range{15, 25}); g.Left() != 15 {
		t.Errorf("after Add of an overlapping range: Left = %d, want 15", g.Left())
	}
	top := ^uint64(0)
	if g.Add(Range{top - 1, top}); g.Left() != 16 {
		t.Errorf("at the end of the nonces: Left = %d, want 16", g.Left())
	}
}

func TestGeneratorConcurrent(t *testing.T) {
	const workers, each, lease = 8, 2000, 64
	var (
		next atomic.Uint64
		g    *Generator
	)
	g = NewGenerator(testRouter(t), testRoute, Range{}, func() {
		to := next.Add(lease)
		g.Add(Range{to - lease, to})
	})
	var wg sync.WaitGroup
	ids := make([][]ID, workers)
	for w := range workers {
		wg.Go(func() {
			for len(ids[w]) < each {
				id, err := g.Generate()
				switch {
				case err == nil:
					ids[w] = append(ids[w], id)
				case errors.Is(err, ErrExhausted):
					runtime.Gosched() // another goroutine is about to add
				default:
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()

	seen := make(map[ID]bool, workers*each)
	for _, list := range ids {
		for _, id := range list {
			if seen[id] {
				t.Fatalf("connection ID %v was made twice", id)
			}
			seen[id] = true
		}
	}
}

func BenchmarkGenerate(b *testing.B) {
	g := NewGenerator(testRouter(b), testRoute, Range{0, ^uint64(0)}, nil)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := g.Generate(); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
