package shm

import (
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
)

// shareOf is a share in percent as a Choice has it.
func shareOf(percent float64) uint16 { return uint16(math.Round(percent / 100 * 65536)) }

// The promise is one point over 5,000 connections; the account keeps it to a
// few connections, from the first on.
func TestQUICTurnsMeetTheShareOverAnyStretch(t *testing.T) {
	s, _ := segment(t, 16, 0)
	a := s.Admission()
	for _, percent := range []float64{0.1, 1, 10, 33, 50, 90, 99} {
		c := Choice{Current: 7, Canary: 8, Share: shareOf(percent)}
		a.ResetTurns()
		r := rand.New(rand.NewPCG(1, uint64(percent)))
		got, worst := 0, 0.0
		for n := 1; n <= 20_000; n++ {
			if a.QUICTurn(c, r.Uint64()) == 8 {
				got++
			}
			worst = max(worst, math.Abs(float64(got)-float64(n)*float64(c.Share)/65536))
		}
		if worst > 12 {
			t.Errorf("%v %%: off by %.1f connections", percent, worst)
		}
	}
}

// Clients that come in a rhythm do not all meet the same generation.
func TestTurnsFollowNoRhythm(t *testing.T) {
	s, _ := segment(t, 16, 0)
	a := s.Admission()
	c := Choice{Current: 1, Canary: 2, Share: 1 << 15}
	r := rand.New(rand.NewPCG(2, 2))
	var quic, tcp [2]int
	const n = 10_000
	for i := range n {
		if a.QUICTurn(c, r.Uint64()) == 2 {
			quic[i%2]++
		}
		turn := a.TCPTurn(c)
		a.TCPTaken(c, turn.Generation)
		if turn.Generation == 2 {
			tcp[i%2]++
		}
	}
	for _, got := range [][2]int{quic, tcp} {
		if got[0] < n/4-n/20 || got[1] < n/4-n/20 {
			t.Errorf("of every other connection the canary got %v of %d", got, n/2)
		}
	}
}

// Several workers may take a connection on one turn; the account sets it right.
func TestTCPTurnsSurviveRaces(t *testing.T) {
	s, _ := segment(t, 16, 0)
	a := s.Admission()
	for _, percent := range []float64{1, 10, 50} {
		c := Choice{Current: 3, Canary: 9, Share: shareOf(percent)}
		a.ResetTurns()
		var took [2]atomic.Int64
		var wg sync.WaitGroup
		const workers, each = 4, 5_000
		for range workers {
			wg.Go(func() {
				for range each {
					turn := a.TCPTurn(c)
					a.TCPTaken(c, turn.Generation)
					if turn.Generation == 9 {
						took[1].Add(1)
					} else {
						took[0].Add(1)
					}
				}
			})
		}
		wg.Wait()
		share := float64(took[1].Load()) / (workers * each)
		if math.Abs(share-percent/100) > 0.005 {
			t.Errorf("%v %%: %.4f", percent, share)
		}
	}
}

// A damaged word costs the balance of a few connections, not the share.
func TestDamagedTurnsHeal(t *testing.T) {
	s, _ := segment(t, 16, 0)
	a := s.Admission()
	c := Choice{Current: 1, Canary: 2, Share: shareOf(10)}
	r := rand.New(rand.NewPCG(3, 3))
	for _, w := range []uint64{math.MaxUint64, 0x7fffffff, 0x80000000, r.Uint64()} {
		a.view.Store64(admissionQUIC, w)
		a.view.Store64(admissionTCP, w)
		quic, tcp := 0, 0
		for range 10_000 {
			if a.QUICTurn(c, r.Uint64()) == 2 {
				quic++
			}
			turn := a.TCPTurn(c)
			a.TCPTaken(c, turn.Generation)
			if turn.Generation == 2 {
				tcp++
			}
		}
		for _, got := range []int{quic, tcp} {
			if got < 1000-2*maxCredit || got > 1000+2*maxCredit {
				t.Errorf("word %#x: %d of 10000", w, got)
			}
		}
	}
}

func TestWithoutACanaryThereAreNoTurns(t *testing.T) {
	s, _ := segment(t, 16, 0)
	a := s.Admission()
	c := Choice{Current: 5}
	for h := range uint64(100) {
		if a.QUICTurn(c, h<<48) != 5 || a.TCPTurn(c).Generation != 5 {
			t.Fatal("somebody else's turn")
		}
	}
}

// What one worker claims for another belongs to the other, and to nobody
// before that.
func TestInsertFor(t *testing.T) {
	s, o := segment(t, 64, 3)
	tab := s.Table()
	if w, err := tab.InsertFor(testID(1), o[0], o[1], KindHandshaking, 1); err != nil || w != o[1] {
		t.Fatal(w, err)
	}
	if h, ok := tab.Lookup(testID(1), 1); !ok || h.Owner != o[1] {
		t.Errorf("%+v, %v", h, ok)
	}
	if w, err := tab.InsertFor(testID(1), o[0], o[2], KindHandshaking, 1); err != nil || w != o[1] {
		t.Errorf("the second claim is told %v, %v", w, err)
	}
	tab.RemoveAll(o[0])
	mustUsage(t, tab, 1, 1)
	s.Directory().MarkDead(o[1].Slot)
	if w, err := tab.InsertFor(testID(1), o[0], o[2], KindHandshaking, 1); err != nil || w != o[2] {
		t.Errorf("after the owner's death: %v, %v", w, err)
	}
	if _, err := tab.InsertFor(testID(2), o[0], o[1], KindHandshaking, 1); !errors.Is(err, ErrOwnerDead) {
		t.Errorf("for a dead owner: %v", err)
	}
	mustCheck(t, s)
}
