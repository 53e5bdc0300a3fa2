package packetqueue

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// playThroughput pushes n records of a size as fast as they fit.
func playThroughput(region []byte, n, size int) error {
	p, err := Lease(region, Token(1, 1), peerChannel)
	if err != nil {
		return err
	}
	defer pin(0)()
	if err := here(); err != nil {
		return err
	}
	r := Record{Payload: make([]byte, size)}
	if size > 1200 {
		r.Segment = 1200
	}
	for range n {
		for err = p.Push(&r); errors.Is(err, ErrFull); err = p.Push(&r) {
			yield()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// pin keeps the calling goroutine on one of the CPUs that the process may use,
// so that two processes which never sleep do not share one, and returns what
// undoes it. Where there is only one CPU it does nothing.
func pin(i int) func() {
	runtime.LockOSThread()
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil || all.Count() < 2 {
		return runtime.UnlockOSThread
	}
	for cpu := range len(all) * 64 {
		if !all.IsSet(cpu) {
			continue
		}
		if i--; i < 0 {
			var one unix.CPUSet
			one.Set(cpu)
			_ = unix.SchedSetaffinity(0, &one)
			break
		}
	}
	return func() {
		_ = unix.SchedSetaffinity(0, &all)
		runtime.UnlockOSThread()
	}
}

// yield lets another process have the CPU if it wants it. Gosched would start
// threads of this process, for want of anything else to run.
func yield() { _, _, _ = syscall.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// BenchmarkPushPull is the time for one record from the producer's buffer to the
// consumer's, between two processes that never sleep. Both copies are in it.
func BenchmarkPushPull(b *testing.B) {
	for _, size := range []int{64, 1200, 16 * 1200} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			shm := newShared(b, 32, 256<<10)
			peer, in := shm.start(b, fmt.Sprintf("pairs %d %d", b.N, size))
			c := mustOpen(b, shm.region, peerChannel)
			into := make([]byte, MaxPayload)
			var r Record
			defer pin(1)()
			b.SetBytes(int64(size))
			b.ReportAllocs()
			b.ResetTimer()
			fmt.Fprint(in, "s")
			for n := 0; n < b.N; {
				if !c.Next(&r) {
					yield()
					continue
				}
				copy(into, r.Payload)
				n++
			}
			b.StopTimer()
			c.Done()
			if err := peer.Wait(); err != nil || c.Bad() != 0 {
				b.Fatal(err, c.Bad())
			}
		})
	}
}

// BenchmarkPushPullAlone is the same work in one goroutine: no other core, no
// cache line moves.
func BenchmarkPushPullAlone(b *testing.B) {
	for _, size := range []int{64, 1200, 16 * 1200} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			region := newRegion(b, 32, 256<<10)
			p, c := mustLease(b, region, 1, peerChannel), mustOpen(b, region, peerChannel)
			into := make([]byte, MaxPayload)
			in, out := Record{Payload: make([]byte, size)}, Record{}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if err := p.Push(&in); err != nil || p.NeedRing() || !c.Next(&out) {
					b.Fatal(err)
				}
				copy(into, out.Payload)
				c.Done()
			}
		})
	}
}

// BenchmarkIdlePoll is what a consumer pays to learn that nothing came, with
// every lane leased; BenchmarkArm what it pays before each sleep.
func BenchmarkIdlePoll(b *testing.B) {
	_, c := idleQueue(b)
	var r Record
	for b.Loop() {
		c.Next(&r)
	}
}

func BenchmarkArm(b *testing.B) {
	_, c := idleQueue(b)
	for b.Loop() {
		if !c.Arm() {
			b.Fatal("something is there")
		}
		c.Disarm()
	}
}

func idleQueue(b *testing.B) (region []byte, c *Consumer) {
	b.Helper()
	region = newRegion(b, 32, 256<<10)
	for i := range 32 {
		mustLease(b, region, uint64(i+1), 0)
	}
	c = mustOpen(b, region, 0)
	c.Arm()
	c.Disarm()
	return region, c
}

// playLatency waits until the consumer sleeps, then pushes one record that
// carries the time, and rings.
func playLatency(region []byte, n int) error {
	p, err := Lease(region, Token(1, 1), peerChannel)
	if err != nil {
		return err
	}
	if err := here(); err != nil {
		return err
	}
	r := Record{Payload: make([]byte, 1200)}
	for range n {
		for p.channel.Load64(chanArmed) == 0 {
			runtime.Gosched()
		}
		time.Sleep(100 * time.Microsecond) // from armed to asleep
		r.Pushed = monotonic()
		if err := p.Push(&r); err != nil {
			return err
		}
		if p.NeedRing() {
			if err := RingFD(4); err != nil {
				return err
			}
		}
	}
	return nil
}

// BenchmarkWakeUp is the time from just before the push to the record in the
// hands of a consumer that was asleep in Go's poller.
func BenchmarkWakeUp(b *testing.B) {
	shm := newShared(b, 32, 256<<10)
	peer, in := shm.start(b, fmt.Sprint("latency ", b.N))
	c, w := mustOpen(b, shm.region, peerChannel), newWaiter(b, shm.bell)
	took := make([]int64, 0, b.N)
	var r Record
	fmt.Fprint(in, "s")
	for len(took) < b.N {
		if c.Arm() {
			if err := w.wait(10 * time.Second); err != nil {
				b.Fatal(err)
			}
			c.Disarm()
		}
		for c.Next(&r) {
			took = append(took, monotonic()-r.Pushed)
		}
	}
	if err := peer.Wait(); err != nil {
		b.Fatal(err)
	}
	slices.Sort(took)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(took[len(took)/2])/1e3, "µs/p50")
	b.ReportMetric(float64(took[len(took)*99/100])/1e3, "µs/p99")
}
