package test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/shm"
	"github.com/holdfast-quic/holdfast/test/kit"
)

// regions computes where table and queues of a segment lie, from
// docs/shm-abi.md.
func regions(g shm.Geometry) (table, queues int64) {
	pages := func(n int64) int64 { return (n + 4095) &^ 4095 }
	table = 4096 + 4096 + pages(128+int64(g.Slots)*128) + pages((int64(g.Slots)+1)*512)
	queueBytes := pages(64<<10+int64(g.Lanes)*(int64(g.LaneBytes)+4<<10)) * int64(g.Slots)
	return table, g.Size() - queueBytes
}

// usedPages returns the offsets of the pages of a window that hold anything: a
// random one of all pages would hardly ever be one that somebody reads.
func usedPages(f *os.File, from, to int64) []int64 {
	const (
		seekData = 3
		page     = 4096
	)
	var used []int64
	for at := from; at < to; at += page {
		data, err := f.Seek(at, seekData)
		if err != nil || data >= to {
			break
		}
		at = data &^ (page - 1)
		used = append(used, at)
	}
	return used
}

// Random bytes in the segment, written while traffic runs, cost packets: no
// process ends, no answer comes from the wrong one, no connection is reset, and
// once it stops the service is whole again.
func TestRandomBytesInTheSegment(t *testing.T) {
	for _, c := range []struct {
		name   string
		window func(g shm.Geometry) (from, to int64)
	}{
		{"header, admission and directory", func(g shm.Geometry) (int64, int64) { return 0, 8192 + 128 + 8*128 }},
		{"table", func(g shm.Geometry) (int64, int64) { return regions(g) }},
		// The first slots are the ones in use.
		{"queues", func(g shm.Geometry) (int64, int64) {
			_, q := regions(g)
			return q, q + 8*(g.Size()-q)/int64(g.Slots)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			config, g := smallSegment()
			in := kit.Start(t, kit.Options{Config: config, Corrupted: true})
			o := in.Client()
			o.IdleTimeout = 5 * time.Second
			old := kit.StartFleet(t, kit.FleetOptions{
				Client: o, N: 30, Interval: 50 * time.Millisecond, Timeout: 2 * time.Second, Reconnect: true,
			})
			reload(t, in)
			pids := in.WorkerPIDs()
			path, _ := segmentOf(t, in.PID())
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			from, to := c.window(g)
			random := rand.New(rand.NewPCG(1, 2))
			noise := make([]byte, 64)
			span := kit.Scale(4*time.Second, 60*time.Second)
			var pages []int64
			kit.Every(time.Millisecond, span, func(i int) bool {
				if i%100 == 0 {
					pages = usedPages(f, from, to)
				}
				for i := range noise {
					noise[i] = byte(random.Uint32())
				}
				n := 1 << random.IntN(7)
				at := pages[random.IntN(len(pages))] + random.Int64N(int64(4096-n+1))
				if _, err := f.WriteAt(noise[:n], at); err != nil {
					t.Error(err)
					return false
				}
				return true
			})
			t.Logf("noise in %d pages", len(pages))
			for _, pid := range pids {
				if !kit.Alive(pid) {
					t.Errorf("worker %d ended", pid)
				}
			}
			r := old.Stop()
			t.Log(r)
			if r.Strangers > 0 {
				t.Errorf("%d answers by a process that does not own the connection", r.Strangers)
			}
			if n := r.Causes()[kit.CauseReset]; n > 0 {
				t.Errorf("%d connections of live processes were reset", n)
			}
			in.AwaitStatus(5*time.Second, "no worker crashed", func(s kit.Status) error {
				if n := s.Counter("worker_crashes"); n > 0 {
					return fmt.Errorf("%d workers crashed", n)
				}
				return nil
			})
			reload(t, in)
			_, h := kit.Burst(t, in.Client(), 20, 4)
			h.MustBeClean(t)
		})
	}
}
