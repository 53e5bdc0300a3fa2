package shm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
)

// The table against a map, under random calls of several owners that live and
// die, with a table so small that entries run out.
func TestTableAgainstModel(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			s, o := segment(t, 128, 4)
			tab, d := s.Table(), s.Directory()
			type held struct {
				owner Owner
				kind  Kind
			}
			model := make(map[int]held) // established ones must be there; handshakes may go
			nextInc := Incarnation(1000)
			for step := range 20_000 {
				i, w := r.IntN(90), r.IntN(4)
				id, now := testID(i), Epoch(step/1000)
				have, ok := model[i]
				switch r.IntN(12) {
				case 0, 1, 2, 3:
					k := Kind(1 + r.IntN(2))
					win, err := tab.Insert(id, o[w], k, now)
					switch {
					case err != nil:
						if ok && have.kind == KindEstablished {
							t.Fatalf("step %d: %v for a key that is there", step, err)
						}
					case win == o[w] && (!ok || have.owner == o[w] || have.kind == KindHandshaking):
						if ok && have.owner == o[w] && have.kind == KindEstablished {
							k = KindEstablished
						}
						model[i] = held{o[w], k}
					case !ok || win != have.owner:
						t.Fatalf("step %d: %v won against %v", step, win, have)
					}
				case 4:
					err := tab.Establish(id, o[w], now)
					switch {
					case err == nil && ok && have.kind == KindEstablished && have.owner != o[w]:
						t.Fatalf("step %d: established twice", step)
					case err == nil:
						model[i] = held{o[w], KindEstablished}
					case errors.Is(err, ErrOwned) && (!ok || have.owner == o[w]):
						t.Fatalf("step %d: %v, but the model has %v", step, err, have)
					}
				case 5:
					done := tab.Remove(id, o[w])
					if must := ok && have.owner == o[w] && have.kind == KindEstablished; must && !done || done && (!ok || have.owner != o[w]) {
						t.Fatalf("step %d: removed: %v, but the model has %v", step, done, have)
					}
					if done {
						delete(model, i)
					}
				case 6:
					if r.IntN(40) != 0 {
						continue
					}
					d.MarkDead(o[w].Slot)
					if r.IntN(2) == 0 {
						tab.Reclaim(o[w])
					}
					for j, h := range model {
						if h.owner == o[w] {
							delete(model, j)
						}
					}
					nextInc++
					o[w].Incarnation = nextInc
					d.Assign(o[w].Slot, nextInc, 1, 1)
				case 7:
					sweepAll(tab, now, Limits{})
					mustCheck(t, s)
				default:
					hit, found := tab.Lookup(id, now)
					switch {
					case found && (!ok || hit.Owner != have.owner || hit.Kind != have.kind):
						t.Fatalf("step %d: found %v, the model has %v, %v", step, hit, have, ok)
					case !found && ok && have.kind == KindEstablished:
						t.Fatalf("step %d: lost %v", step, have)
					case !found:
						delete(model, i)
					}
				}
			}
			sweepAll(tab, 21, Limits{})
			used, shaking := 0, 0
			for i, h := range model {
				if hit, ok := tab.Lookup(testID(i), 21); ok {
					used++
					if hit.Kind == KindHandshaking {
						shaking++
					}
				} else if h.kind == KindEstablished {
					t.Errorf("lost %d", i)
				}
			}
			mustUsage(t, tab, used, shaking)
			mustCheck(t, s)
		})
	}
}
