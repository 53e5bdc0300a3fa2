package supervisor

import (
	"math/rand/v2"
	"testing"
)

func udpSockets(listener uint8, n int) []readSocket {
	var out []readSocket
	for i := range n {
		out = append(out, readSocket{key: socketKey{listener, networkUDP, 10 + i}, position: i})
	}
	return out
}

func TestDesiredSpreadsSockets(t *testing.T) {
	got := desired(udpSockets(0, 5), []readerGroup{{listeners: 1, members: []bool{true, true}, accepts: true}})
	if a, b := got[0][0].udp[0], got[0][1].udp[0]; len(a) != 3 || len(b) != 2 || a[0] != 10 || b[0] != 11 {
		t.Errorf("%v %v", a, b)
	}
}

func TestDesiredGivesADeadWorkersSocketsToASibling(t *testing.T) {
	got := desired(udpSockets(0, 3), []readerGroup{{listeners: 1, members: []bool{true, false, true}}})
	if a, b, c := len(got[0][0].udp[0]), len(got[0][1].udp[0]), len(got[0][2].udp[0]); a != 1 || b != 0 || c != 2 {
		t.Errorf("%d %d %d", a, b, c)
	}
}

func TestDesiredPrefersTheFirstGroupThatCanRead(t *testing.T) {
	sockets := append(udpSockets(0, 2), udpSockets(1, 2)...)
	groups := []readerGroup{
		{listeners: 0b01, members: []bool{true}, accepts: true},
		{listeners: 0b11, members: []bool{false}},
		{listeners: 0b11, members: []bool{true}},
	}
	got := desired(sockets, groups)
	if len(got[0][0].udp[0]) != 2 || got[1][0].udp != nil || got[2][0].udp[0] != nil || len(got[2][0].udp[1]) != 2 {
		t.Errorf("%+v", got)
	}
}

func TestDesiredHandover(t *testing.T) {
	tcp := readSocket{key: socketKey{0, networkTCP, 0}}
	current := readerGroup{listeners: 1, members: []bool{true}, accepts: true}
	incoming := current
	incoming.beside = true
	got := desired(append(udpSockets(0, 2), tcp), []readerGroup{current, incoming})
	for _, sets := range got {
		if set := sets[0]; len(set.udp[0]) != 2 || len(set.tcp[0]) != 1 {
			t.Errorf("%+v", set)
		}
	}
}

// A canary accepts TCP connections, and reads what the current generation does
// not have, or can't.
func TestDesiredCanary(t *testing.T) {
	sockets := append(udpSockets(0, 2), udpSockets(1, 1)...)
	sockets = append(sockets, readSocket{key: socketKey{0, networkTCP, 0}})
	current := readerGroup{listeners: 0b01, members: []bool{true}, accepts: true}
	canary := readerGroup{listeners: 0b11, members: []bool{true}, accepts: true}
	got := desired(sockets, []readerGroup{current, canary})
	if c := got[1][0]; len(c.udp[0]) != 0 || len(c.udp[1]) != 1 || len(c.tcp[0]) != 1 || len(got[0][0].udp[0]) != 2 || len(got[0][0].tcp[0]) != 1 {
		t.Errorf("%+v", got)
	}
	current.members[0] = false
	if got := desired(sockets, []readerGroup{current, canary}); len(got[1][0].udp[0]) != 2 {
		t.Errorf("without a current worker: %+v", got)
	}
}

// I4: whatever lives, every UDP socket of a listener that a living group has
// is read by exactly one worker of one group; and only who accepts accepts.
func TestDesiredReadsEverything(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		var sockets []readSocket
		for l := range uint8(4) {
			sockets = append(sockets, udpSockets(l, 1+rng.IntN(4))...)
			sockets = append(sockets, readSocket{key: socketKey{l, networkTCP, 0}})
		}
		var groups []readerGroup
		for i := range 1 + rng.IntN(4) {
			g := readerGroup{listeners: rng.Uint64N(16), members: make([]bool, 1+rng.IntN(4)), accepts: i == 0}
			for m := range g.members {
				g.members[m] = rng.IntN(3) > 0
			}
			groups = append(groups, g)
		}
		got := desired(sockets, groups)
		readers := map[socketKey]int{}
		for i, sets := range got {
			for m, set := range sets {
				if (set.udp != nil || set.tcp != nil) && !groups[i].members[m] {
					t.Fatalf("a dead worker reads: %+v", groups)
				}
				if set.tcp != nil && !groups[i].accepts {
					t.Fatalf("a draining generation accepts: %+v", groups)
				}
				for l, indices := range set.udp {
					for _, index := range indices {
						readers[socketKey{l, networkUDP, index}]++
					}
				}
			}
		}
		for _, sock := range sockets {
			if sock.key.network != networkUDP {
				continue
			}
			want := 0
			for _, g := range groups {
				if g.listeners&(1<<sock.key.listener) != 0 && g.canRead() {
					want = 1
				}
			}
			if readers[sock.key] != want {
				t.Fatalf("%v has %d readers, want %d: %+v", sock.key, readers[sock.key], want, groups)
			}
		}
	}
}
