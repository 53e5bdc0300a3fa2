package worker

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/shm"
)

// Three generations take turns at two sockets while clients, old and new, of
// both families echo without a pause. No connection is lost and no packet of
// one is taken for a stranger's. C090, C091
func TestManyHandoversUnderLoad(t *testing.T) {
	s := newService(t)
	socks := []string{"[::]:0"}
	first := s.listen("udp", socks[0])
	second := s.listen("udp", address(t, first, "::"))
	var members []*member
	for i := range 3 {
		members = append(members, s.start(shm.SlotID(i), shm.Generation(i+1), first, second).echo())
	}
	s.current(1)
	members[0].read(0, 1)
	var clients []*client
	for i := range 6 {
		host := []string{"127.0.0.1", "::1"}[i%2]
		clients = append(clients, s.dial("udp", "", address(t, first, host)))
	}
	var stop atomic.Bool
	var wg sync.WaitGroup
	echo := func(c *client) {
		for !stop.Load() {
			if err := c.try(20_000); err != nil {
				t.Errorf("%v: %v", c.conn.RemoteAddr(), err)
				return
			}
		}
	}
	for _, c := range clients {
		wg.Go(func() { echo(c) })
	}
	rounds := 12
	if testing.Short() {
		rounds = 4
	}
	for round := range rounds {
		next, last := members[(round+1)%3], members[round%3]
		next.read(0, 1)
		s.current(shm.Generation((round+1)%3 + 1))
		last.read()
		fresh := s.dial("udp", "", address(t, first, "127.0.0.1"))
		clients = append(clients, fresh)
		wg.Go(func() { echo(fresh) })
		time.Sleep(20 * time.Millisecond)
	}
	stop.Store(true)
	wg.Wait()
	total := s.segment.Totals()
	if got, want := total[shm.QUICAccepted], uint64(len(clients)); got != want {
		t.Errorf("%d connections for %d clients", got, want)
	}
	for _, c := range []shm.Counter{shm.UnknownCID, shm.DropLoop, shm.DropOrphan, shm.DropNoLane, shm.DropNoListener, shm.DropMalformed} {
		if total[c] != 0 {
			t.Errorf("%v: %d", c, total[c])
		}
	}
	if total[shm.PacketsForwarded] == 0 {
		t.Error("nothing was forwarded")
	}
	for _, c := range clients {
		c.close()
	}
	for _, m := range members {
		m.stop()
	}
	s.checkSums()
}
