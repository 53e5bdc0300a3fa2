package shm

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/holdfast-quic/holdfast/connid"
)

// benchSizes are numbers of live entries; the table has at least twice as many,
// and so many that a benchmark which inserts for seconds on end does not meet
// two full buckets by chance.
var benchSizes = []int{1_000, 100_000, 1_000_000}

func benchID(i int) connid.ID {
	var b [17]byte
	binary.LittleEndian.PutUint64(b[1:], uint64(i)*0x9e3779b97f4a7c15)
	binary.LittleEndian.PutUint64(b[9:], uint64(i))
	id, err := connid.FromBytes(b[:])
	if err != nil {
		panic(err)
	}
	return id
}

// benchTable returns a mapped table with n established entries of one owner.
func benchTable(b *testing.B, n int) (*Table, Owner) {
	b.Helper()
	g := Geometry{Slots: 256, TableEntries: 1 << 14, Lanes: 1, LaneBytes: pageBytes}
	for g.TableEntries < 2*n {
		g.TableEntries *= 2
	}
	s, err := Create(g)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	o := Owner{Slot: 1, Incarnation: 1}
	s.Directory().Assign(o.Slot, o.Incarnation, 1, 1)
	for i := range n {
		if _, err := s.Table().Insert(benchID(i), o, KindEstablished, 1); err != nil {
			b.Fatal(err)
		}
	}
	return s.Table(), o
}

// withWriters runs insert-and-remove loops beside the benchmark.
func withWriters(b *testing.B, t *Table, o Owner, writers int) {
	stop := make(chan struct{})
	done := make(chan struct{})
	for w := range writers {
		go func() {
			defer func() { done <- struct{}{} }()
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				id := benchID(1<<30 + w<<24 + i&0xffff)
				if _, err := t.Insert(id, o, KindHandshaking, 1); err == nil {
					t.Remove(id, o)
				}
			}
		}()
	}
	b.Cleanup(func() {
		close(stop)
		for range writers {
			<-done
		}
	})
}

func BenchmarkTableLookup(b *testing.B) {
	for _, n := range benchSizes {
		for _, writers := range []int{0, 1, 3} {
			b.Run(fmt.Sprintf("entries=%d/writers=%d", n, writers), func(b *testing.B) {
				t, o := benchTable(b, n)
				ids := make([]connid.ID, 1<<16)
				for i := range ids {
					ids[i] = benchID(rand.IntN(n))
				}
				withWriters(b, t, o, writers)
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					i = (i + 1) & (len(ids) - 1)
					if _, ok := t.Lookup(ids[i], 1); !ok {
						b.Fatal("lost")
					}
				}
			})
		}
	}
}

func BenchmarkTableLookupHot(b *testing.B) {
	t, _ := benchTable(b, 1000)
	var ids [8]connid.ID
	for i := range ids {
		ids[i] = benchID(i)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i = (i + 1) & 7
		if _, ok := t.Lookup(ids[i], 1); !ok {
			b.Fatal("lost")
		}
	}
}

func BenchmarkTableLookupMiss(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprintf("entries=%d", n), func(b *testing.B) {
			t, _ := benchTable(b, n)
			ids := make([]connid.ID, 1<<16)
			for i := range ids {
				ids[i] = benchID(n + rand.IntN(1<<20))
			}
			i := 0
			for b.Loop() {
				i = (i + 1) & (len(ids) - 1)
				if _, ok := t.Lookup(ids[i], 1); ok {
					b.Fatal("found")
				}
			}
		})
	}
}

// BenchmarkRandomRead is what a look-up in a large table can be compared with:
// one read of one word of the table at random, whose place depends on the word
// read before, so that it cannot begin before that one has come.
func BenchmarkRandomRead(b *testing.B) {
	t, _ := benchTable(b, 1_000_000)
	at := uint64(1)
	for b.Loop() {
		at = at*0x9e3779b97f4a7c15 + 1 + uint64(t.bucket(at>>20&t.mask).meta(0))&1
	}
	if at == 0 {
		b.Log(at)
	}
}

func BenchmarkTableInsert(b *testing.B) {
	for _, n := range benchSizes {
		for _, writers := range []int{0, 1, 3} {
			b.Run(fmt.Sprintf("entries=%d/writers=%d", n, writers), func(b *testing.B) {
				t, o := benchTable(b, n)
				withWriters(b, t, o, writers)
				b.ReportAllocs()
				// One insert and the removal of what was inserted n/4 inserts ago.
				i, behind := 0, max(n/4, 1)
				for b.Loop() {
					if _, err := t.Insert(benchID(n+i), o, KindEstablished, 1); err != nil {
						b.Fatal(err)
					}
					if i >= behind {
						t.Remove(benchID(n+i-behind), o)
					}
					i++
				}
			})
		}
	}
}

func BenchmarkHash(b *testing.B) {
	t, _ := benchTable(b, 1)
	id := benchID(1)
	var sum uint64
	for b.Loop() {
		sum += t.Hash(id)
	}
	_ = sum
}

func BenchmarkSweep(b *testing.B) {
	t, _ := benchTable(b, 1_000_000)
	next := 0
	for b.Loop() {
		next, _ = t.Sweep(next, 4096, 1, Limits{})
	}
}
