package worker

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
	"github.com/holdfast-quic/holdfast/shm"
)

func inode(t *testing.T, f *os.File) [2]uint64 {
	t.Helper()
	fd, err := dupFD(f)
	must(t, err)
	defer unix.Close(fd)
	var st unix.Stat_t
	must(t, unix.Fstat(fd, &st))
	return [2]uint64{st.Dev, st.Ino}
}

// A worker whose supervisor is killed serves on, gives the next one all that it
// was given, and obeys it. C051
func TestWorkerServesWithoutSupervisor(t *testing.T) {
	b := newBoss(t)
	b.leaveable()
	b.run(echoServer)
	b.expect(lifeline.KindReady)
	b.readers(4, []int{0}, []int{0})
	addr := address(t, b.udp, "127.0.0.1")
	c := (&service{t: t}).dial("udp4", "", addr)
	c.ping(1000)
	tcp, err := net.Dial("tcp4", addr)
	must(t, err)
	defer tcp.Close()
	echo := func() {
		t.Helper()
		_, err := tcp.Write([]byte("x"))
		must(t, err)
		_, err = io.ReadFull(tcp, make([]byte, 1))
		must(t, err)
	}
	echo()

	given := b.files()
	for round := range 3 {
		b.die()
		c.ping(1000)
		echo()
		(&service{t: t}).dial("udp4", "", addr).ping(1000) // a new one

		m, files := b.next()
		if m.PID != os.Getpid() || m.Slot != 2 || m.Incarnation != 5 || m.Generation != 1 || m.ConfigHash != "sha256:0" ||
			m.Version != "1.2.3" || m.ABIMajor != shm.ABIMajor {
			t.Errorf("identity %+v", m)
		}
		if !m.Ready || m.Draining || m.Stopping || m.ReadersSeq != uint64(4+round) || len(m.Peers) != 0 || len(m.Sockets) != 2 {
			t.Errorf("state %+v", m)
		}
		// Segment, payload, doorbell, handover socket, program, sockets.
		want := []*os.File{given[0], given[1], given[2], b.handover, nil, given[3], given[4]}
		if len(files) != len(want) {
			t.Fatalf("%d descriptors, want %d", len(files), len(want))
		}
		for i, f := range want {
			// All eventfds share an inode; the test has but one.
			if f != nil && inode(t, files[i]) != inode(t, f) {
				t.Errorf("descriptor %d is another file", i)
			}
		}
		self, err := os.Open("/proc/self/exe")
		must(t, err)
		if inode(t, files[4]) != inode(t, self) {
			t.Error("the program is another file")
		}
		self.Close()

		if round == 0 {
			// This one does not want it.
			b.send(&lifeline.Message{Kind: lifeline.KindRefuse, Refuse: &lifeline.Refuse{Reason: "unknown"}})
			c.ping(1000)
			b.next()
			// This one dies in the middle.
			b.life.Close()
			c.ping(1000)
			m, _ = b.next()
		}
		b.take()
		b.readers(m.ReadersSeq+1, []int{0}, []int{0})
		c.ping(1000)
	}
	c.close()
	tcp.Close()
	b.send(&lifeline.Message{Kind: lifeline.KindStop, Stop: &lifeline.Stop{Grace: time.Second}})
	b.expect(lifeline.KindDrained)
	if code := b.exit(); code != exitDone {
		t.Errorf("exit code %d", code)
	}
}

// What the worker wanted to say while nobody listened is said to the next
// supervisor.
func TestWorkerRepeatsWhatNobodyHeard(t *testing.T) {
	b := newBoss(t)
	b.leaveable()
	goOn := make(chan struct{})
	b.run(func(ctx context.Context, w *Worker) error {
		<-goOn
		return echoServer(ctx, w)
	})
	b.die()
	m, _ := b.next()
	if m.Ready {
		t.Error("ready before the program said so")
	}
	b.worker.wantNonces()
	for !b.worker.noncesAsked.Load() {
		time.Sleep(time.Millisecond)
	}
	close(goOn)
	for !b.worker.ready.Load() {
		time.Sleep(time.Millisecond)
	}
	b.take()
	b.expect(lifeline.KindReady)
	b.expect(lifeline.KindNonceRequest)
	b.send(&lifeline.Message{Kind: lifeline.KindNonceLease, NonceLease: &lifeline.NonceLease{From: 1 << 30, To: 1 << 31}})
	b.die()
	b.next()
	b.take()
	b.send(&lifeline.Message{Kind: lifeline.KindStop, Stop: &lifeline.Stop{Grace: time.Second}})
	b.expect(lifeline.KindDrained) // and no request for what it has got
	b.exit()
}

func TestWorkerDoesNotServeAloneForEver(t *testing.T) {
	b := newBoss(t)
	b.leaveable()
	b.welcome.OrphanTimeout = 50 * time.Millisecond
	b.run(echoServer)
	b.expect(lifeline.KindReady)
	b.die()
	within(t, b.worker.Stopping(), "still serving")
	if code := b.exit(); code != exitDone {
		t.Errorf("exit code %d", code)
	}
	b.handover.Close() // the boss's own
	eventually(t, "nobody listens any more", func() bool {
		conn, err := lifeline.Dial(b.path)
		if err == nil {
			conn.Close()
		}
		return errors.Is(err, unix.ECONNREFUSED)
	})
}

// A drain can be taken back as long as the worker has not ended, and be ordered
// again.
func TestDrainIsTakenBack(t *testing.T) {
	b := newBoss(t)
	b.run(echoServer)
	b.expect(lifeline.KindReady)
	b.readers(1, []int{0}, []int{0})
	dir := b.segment.Directory()
	addr := address(t, b.udp, "127.0.0.1")
	b.send(&lifeline.Message{Kind: lifeline.KindUndrain}) // of nothing
	serving := b.worker.Serving()
	within(t, serving, "not serving at first")
	for range 3 {
		draining := b.worker.Draining()
		// It has no connection, and stays all the same.
		b.send(&lifeline.Message{Kind: lifeline.KindDrain, Drain: &lifeline.Drain{Mode: lifeline.DrainHold, Linger: time.Hour}})
		within(t, draining, "not draining")
		if o := within(t, b.worker.DrainOrders(), "no order"); o.Mode != DrainHold {
			t.Errorf("order %+v", o)
		}
		back := b.worker.Serving()
		if p := dir.Record(b.self.Slot).Phase; p != shm.PhaseDraining {
			t.Errorf("phase %v", p)
		}
		b.send(&lifeline.Message{Kind: lifeline.KindUndrain})
		within(t, back, "still draining")
		eventually(t, "the phase is serving", func() bool { return dir.Record(b.self.Slot).Phase == shm.PhaseServing })
		select {
		case <-b.worker.Draining():
			t.Error("still draining")
		case <-b.worker.Idle():
			t.Error("idle")
		default:
		}
		(&service{t: t}).dial("udp4", "", addr).ping(10)
	}
	b.send(&lifeline.Message{Kind: lifeline.KindDrain, Drain: &lifeline.Drain{Mode: lifeline.DrainHold}})
	b.send(&lifeline.Message{Kind: lifeline.KindStop, Stop: &lifeline.Stop{Grace: time.Second}})
	b.expect(lifeline.KindDrained)
	b.exit()
}
