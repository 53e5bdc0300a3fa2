package packetqueue

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// playDying pushes three records and dies by SIGKILL at a step of what follows.
func playDying(region []byte, at step) error {
	ready := false
	kill := func(s step) {
		if s == at && (ready || at == stepLeased) {
			_ = unix.Kill(unix.Getpid(), unix.SIGKILL)
			select {}
		}
	}
	if err := here(); err != nil {
		return err
	}
	p, err := lease(region, dyingToken, peerChannel, kill)
	if err != nil {
		return err
	}
	var r Record
	for i := range 4 { // the fourth wraps
		ready = i == 3
		numbered(&r, 1, i, 1200)
		for err = p.Push(&r); errors.Is(err, ErrFull); err = p.Push(&r) {
			time.Sleep(time.Millisecond)
		}
		if err != nil {
			return err
		}
	}
	for !p.NeedRing() {
		numbered(&r, 1, 4, 16)
		if err := p.Push(&r); err != nil && !errors.Is(err, ErrFull) {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	p.Release()
	return errors.New("the step was not reached")
}

var dyingToken = Token(5, 77)

// TestKillProducerAtEachStep kills a real process at every step of a producer's
// life. The consumer goes on, whatever was committed arrives, the lane comes
// back, and the checker finds nothing.
func TestKillProducerAtEachStep(t *testing.T) {
	for _, s := range []step{
		stepLeased, stepPadding, stepFrame, stepHeader, stepPayload, stepCommitted, stepMarked, stepRingClaimed, stepClosing,
	} {
		t.Run(stepNames[s], func(t *testing.T) {
			shm := newShared(t, peerLanes, 4096)
			c, w := mustOpen(t, shm.region, peerChannel), newWaiter(t, shm.bell)
			healthy := mustLease(t, shm.region, Token(1, 1), peerChannel)
			peer, in := shm.start(t, fmt.Sprint("die ", int(s)))
			dead := make(chan error, 1)
			fmt.Fprint(in, "s")
			go func() {
				dead <- peer.Wait()
				_ = Ring(shm.bell)
			}()

			got, own, gone := 0, 0, false
			for try := 0; !gone || !c.Arm(); try++ {
				if !gone {
					mustPush(t, healthy, 2, own, 16)
				}
				for r := (Record{}); c.Next(&r); {
					switch id, number, err := numberOf(&r); {
					case err != nil:
						t.Fatal(err)
					case id == 2 && number == own:
						own++
					case id == 1 && (number == got || number == 4):
						got++
					default:
						t.Fatalf("record %d of %d", number, id)
					}
				}
				if c.Arm() && !gone {
					if s == stepRingClaimed || try < 4 {
						_ = w.wait(5 * time.Millisecond) // the ring that was claimed never comes
					}
					c.Disarm()
				}
				select {
				case err := <-dead:
					if !killed(err) {
						t.Fatal("peer:", err)
					}
					ReleaseDead(shm.region, dyingToken)
					expectClean(t, shm.region)
					gone = true
				default:
				}
			}
			least := 3
			if s == stepLeased {
				least = 0
			} else if s >= stepCommitted {
				least = 4
			}
			if got < least || s < stepCommitted && got > least || own == 0 || c.Bad() != 0 {
				t.Errorf("%d records of the dead (want %d), %d of the living, %d bad", got, least, own, c.Bad())
			}
			expectClean(t, shm.region)
			for i := range peerLanes - 1 { // the lane of the dead among them
				p := mustLease(t, shm.region, Token(9, uint32(i+1)), peerChannel)
				mustPush(t, p, 9, i, 64)
				expect(t, c, 9, i)
			}
		})
	}
}

func killed(err error) bool {
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// playSingles pushes n records, one at a time, with pauses of random length up
// to a limit, and rings when asked.
func playSingles(region []byte, n int, pause time.Duration) error {
	p, err := Lease(region, Token(1, 1), peerChannel)
	if err != nil {
		return err
	}
	if err := here(); err != nil {
		return err
	}
	r := Record{Payload: make([]byte, 64)}
	for i := range n {
		r.IfIndex = uint32(i)
		if pause > 0 {
			for until := monotonic() + rand.Int64N(int64(pause)); monotonic() < until; {
				continue
			}
		}
		for err = p.Push(&r); errors.Is(err, ErrFull); err = p.Push(&r) {
			if p.NeedRing() {
				if err := RingFD(4); err != nil {
					return err
				}
			}
		}
		if err != nil {
			return err
		}
		if p.NeedRing() {
			if err := RingFD(4); err != nil {
				return err
			}
		}
	}
	p.Release()
	return nil
}

// TestNoLostWakeUpBetweenProcesses is TestNoLostWakeUp with a real doorbell.
func TestNoLostWakeUpBetweenProcesses(t *testing.T) {
	shm := newShared(t, peerLanes, testBytes)
	n := wakeUps(t, 100_000)
	peer, in := shm.start(t, fmt.Sprintf("singles %d %d", n, 3*time.Microsecond))
	c, w := mustOpen(t, shm.region, peerChannel), newWaiter(t, shm.bell)
	fmt.Fprint(in, "s")
	next, sleeps := 0, 0
	for next < n {
		for r := (Record{}); c.Next(&r); next++ {
			if int(r.IfIndex) != next {
				t.Fatalf("record %d, want %d", r.IfIndex, next)
			}
		}
		if next < n && c.Arm() {
			sleeps++
			if err := w.wait(20 * time.Second); err != nil {
				t.Fatalf("asleep after %d records, %d waiting: %v", next, c.Pending(), err)
			}
			c.Disarm()
		}
	}
	if err := peer.Wait(); err != nil {
		t.Fatal(err)
	}
	c.Arm()
	expectClean(t, shm.region)
	t.Logf("%d records, %d sleeps", n, sleeps)
}

// playConsumer reads and counts until it is killed.
func playConsumer(region []byte) error {
	c, err := OpenConsumer(region, peerChannel)
	if err != nil {
		return err
	}
	fmt.Println("here")
	for r := (Record{}); ; {
		for c.Next(&r) {
			continue
		}
		c.Done()
		time.Sleep(time.Millisecond)
	}
}

// TestStoppedConsumer stops a real consumer: its producers drop and never wait,
// other queues are not affected, and it goes on where it was.
func TestStoppedConsumer(t *testing.T) {
	stopped, other := newShared(t, peerLanes, testBytes), newShared(t, peerLanes, testBytes)
	peer, _ := stopped.start(t, "consume")
	if err := peer.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(peer.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatal("peer does not stop:", err)
	}
	p, q, c := mustLease(t, stopped.region, 1, peerChannel), mustLease(t, other.region, 1, 0), mustOpen(t, other.region, 0)
	r := Record{Payload: make([]byte, 1200)}
	full, rings := 0, 0
	var worst time.Duration
	for i := range 10_000 {
		r.Pushed = monotonic()
		before := time.Now()
		if err := p.Push(&r); errors.Is(err, ErrFull) {
			full++
		} else if err != nil {
			t.Fatal(err)
		}
		worst = max(worst, time.Since(before))
		if p.NeedRing() {
			rings++
		}
		mustPush(t, q, 1, i, 100)
		expect(t, c, 1, i)
		c.Done()
	}
	if want := 10_000 - testBytes/int(recordBytes(1200)); full != want || Pending(stopped.region) != 10_000-want {
		t.Errorf("full %d times, want %d; %d pending", full, want, Pending(stopped.region))
	}
	if err := peer.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); Pending(stopped.region) > 0; {
		if time.Now().After(deadline) {
			t.Fatal("the consumer does not go on")
		}
		time.Sleep(time.Millisecond)
	}
	expectClean(t, stopped.region)
	t.Logf("longest push %v, %d rings", worst, rings)
}

func TestDoorbell(t *testing.T) {
	bell, err := NewDoorbell()
	if err != nil {
		t.Fatal(err)
	}
	defer bell.Close()
	w := newWaiter(t, bell)
	for i := range 3 { // never read, each ring is an edge
		if err := Ring(bell); err != nil {
			t.Fatal(err)
		}
		if err := w.wait(10 * time.Second); err != nil {
			t.Fatalf("ring %d is not heard: %v", i, err)
		}
	}
	if err := w.wait(time.Millisecond); err == nil {
		t.Error("woken without a ring")
	}
	fd := int(bell.Fd())
	if n := testing.AllocsPerRun(1000, func() {
		if RingFD(fd) != nil {
			t.Fatal("ring")
		}
	}); n != 0 {
		t.Errorf("RingFD: %v allocations", n)
	}
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Error("doorbell is not close-on-exec", err)
	}
	if err := RingFD(-1); err == nil {
		t.Error("rang a bad descriptor")
	}
}
