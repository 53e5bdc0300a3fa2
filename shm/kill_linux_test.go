package shm

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/holdfast-quic/holdfast/connid"
)

// Environment of a child: what it does, where, and how it dies there.
const (
	childJob   = "SHM_TEST_JOB"
	childPoint = "SHM_TEST_POINT"
	childDeath = "SHM_TEST_DEATH"
)

const exitAtFailpoint = 77

// The child's owner, the owner of what it sweeps, and the keys that it works on.
var (
	childOwner = Owner{1, 50}
	prey       = Owner{2, 60}
)

const (
	victimKey = 1 // the child dies over this one
	childKeys = 60
	preyKeys  = 1000
)

func TestMain(m *testing.M) {
	if job := os.Getenv(childJob); job != "" {
		if err := childMain(job, failpoint(os.Getenv(childPoint)), os.Getenv(childDeath)); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// childMain works on the segment in descriptor 3 and dies at the failpoint.
func childMain(job string, point failpoint, death string) error {
	s, err := Attach(os.NewFile(3, "segment"))
	if err != nil {
		return err
	}
	tab := s.Table()
	// Work without dying first, so that there is something to reclaim.
	for i := range childKeys {
		if _, err := tab.Insert(testID(100+i), childOwner, Kind(1+i%2), 1); err != nil && !errors.Is(err, ErrHandshakesFull) {
			return err
		}
	}
	if job == "remove" || job == "establish" {
		if _, err := tab.Insert(testID(victimKey), childOwner, KindHandshaking, 1); err != nil {
			return err
		}
	}
	tab.hook = func(p failpoint) {
		if p == point {
			die(death)
		}
	}
	switch job {
	case "insert":
		_, err = tab.Insert(testID(victimKey), childOwner, KindHandshaking, 1)
	case "establish":
		err = tab.Establish(testID(victimKey), childOwner, 1)
	case "remove":
		tab.Remove(testID(victimKey), childOwner)
	case "sweep":
		sweepAll(tab, 1, Limits{})
	case "reclaim":
		tab.Reclaim(prey)
	}
	fmt.Println("result:", err)
	return nil
}

func die(death string) {
	switch death {
	case "exit":
		os.Exit(exitAtFailpoint)
	case "kill":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case "stop":
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		// Whatever runs before the stop takes hold waits here for the word.
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	}
}

func child(t *testing.T, s *Segment, job string, p failpoint, death string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childJob+"="+job, childPoint+"="+string(p), childDeath+"="+death)
	f := dup(t, s)
	t.Cleanup(func() { f.Close() })
	cmd.ExtraFiles = []*os.File{f}
	return cmd
}

// jobOf says which calls pass a failpoint.
func jobsOf(p failpoint) []string {
	name, _, _ := strings.Cut(string(p), ":")
	if name == "sweep" {
		return []string{"sweep", "reclaim"}
	}
	return []string{name}
}

// A process that is killed at any step leaves a segment on which the others go
// on at once, and in which nothing is wrong once it was reclaimed.
func TestKilledAtEveryStep(t *testing.T) {
	for _, p := range failpoints {
		for _, job := range jobsOf(p) {
			for _, death := range []string{"exit", "kill"} {
				t.Run(string(p)+"/"+job+"/"+death, func(t *testing.T) { killAt(t, p, job, death) })
			}
		}
	}
}

func killAt(t *testing.T, p failpoint, job, death string) {
	s := create(t, Geometry{Slots: 16, TableEntries: 4096, Lanes: 1, LaneBytes: pageBytes})
	tab, d := s.Table(), s.Directory()
	me := assign(s, 1)[0]
	for _, o := range []Owner{childOwner, prey} {
		d.Assign(o.Slot, o.Incarnation, 1, 1)
	}
	if job == "sweep" || job == "reclaim" {
		for i := range preyKeys {
			if _, err := tab.Insert(testID(10_000+i), prey, KindEstablished, 1); err != nil {
				t.Fatal(err)
			}
		}
		d.MarkDead(prey.Slot)
	}
	mineBefore := testID(5000)
	if _, err := tab.Insert(mineBefore, me, KindEstablished, 1); err != nil {
		t.Fatal(err)
	}

	cmd := child(t, s, job, p, death)
	out, err := cmd.Output()
	ws := cmd.ProcessState.Sys().(syscall.WaitStatus)
	exited := death == "exit" && ws.ExitStatus() == exitAtFailpoint
	killed := death == "kill" && ws.Signaled() && ws.Signal() == syscall.SIGKILL
	if !exited && !killed {
		t.Fatalf("the child never came to the failpoint: %v, %s", err, out)
	}

	// Nobody knows yet that it is dead. Others go on, also over its key.
	for i := range 300 {
		if _, err := tab.Insert(testID(20_000+i), me, KindEstablished, 1); err != nil {
			t.Fatal(err)
		}
	}
	w, err := tab.Insert(testID(victimKey), me, KindEstablished, 1)
	if err != nil || w != me && w != childOwner {
		t.Errorf("over the key of the dead: %v, %v", w, err)
	}

	d.MarkDead(childOwner.Slot)
	tab.Reclaim(childOwner)
	tab.Reclaim(prey)
	mustCheck(t, s)
	if w, err := tab.Insert(testID(victimKey), me, KindEstablished, 1); err != nil || w != me {
		t.Errorf("after reclaim the key belongs to %v, %v", w, err)
	}
	for _, id := range []int{victimKey, 5000, 20_000, 20_299} {
		if h, ok := tab.Lookup(testID(id), 1); !ok || h.Owner != me {
			t.Errorf("%d: %v, %v", id, h, ok)
		}
	}
	sweepAll(tab, 1, Limits{})
	mustUsage(t, tab, 302, 0)
	mustCheck(t, s)
}

// A process that was stopped in the middle of an insert and given up for dead
// goes on after its entry has another owner. It must not publish, and must not
// touch the entry.
func TestLatePublishIsRefused(t *testing.T) {
	for _, p := range []failpoint{fpReserved, fpClaimed, fpHalfKey, fpKey, fpTentative, fpChecked} {
		t.Run(string(p), func(t *testing.T) { stopAt(t, p) })
	}
}

func stopAt(t *testing.T, p failpoint) {
	s := create(t, Geometry{Slots: 16, TableEntries: 4096, Lanes: 1, LaneBytes: pageBytes})
	tab, d := s.Table(), s.Directory()
	me := assign(s, 1)[0]
	d.Assign(childOwner.Slot, childOwner.Incarnation, 1, 1)

	cmd := child(t, s, "insert", p, "stop")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(cmd.Process.Pid, &ws, syscall.WUNTRACED, nil); err != nil || !ws.Stopped() {
		t.Fatalf("the child did not stop: %v, %v, %s", err, ws, out.String())
	}

	// Stopped but alive: nobody waits for it, and its key can be had.
	w, err := tab.Insert(testID(victimKey), me, KindEstablished, 1)
	if err != nil || w != me {
		t.Errorf("beside the stopped child: %v, %v", w, err)
	}
	tab.Remove(testID(victimKey), me)

	d.MarkDead(childOwner.Slot)
	tab.Reclaim(childOwner)
	mustCheck(t, s)
	// Take the very entry that it had.
	if w, err := tab.Insert(testID(victimKey), me, KindEstablished, 1); err != nil || w != me {
		t.Fatal(w, err)
	}
	before := snapshot(tab, testID(victimKey))

	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("the child failed: %v, %s", err, out.String())
	}
	if want := "result: " + ErrOwnerDead.Error() + "\n"; out.String() != want {
		t.Errorf("the child says %q, want %q", out.String(), want)
	}
	if after := snapshot(tab, testID(victimKey)); after != before {
		t.Error("the late child changed the buckets")
	}
	if h, ok := tab.Lookup(testID(victimKey), 1); !ok || h.Owner != me {
		t.Errorf("%v, %v", h, ok)
	}
	mustCheck(t, s)
}

// snapshot returns both buckets of id.
func snapshot(t *Table, id connid.ID) [2]bucket {
	var out [2]bucket
	for n, at := range t.spot(id).b {
		b := t.bucket(at)
		for i := range uint(bucketEntries) {
			k := b.key(i)
			out[n][i] = uint64(b.meta(i))
			if b.meta(i) != 0 {
				copy(out[n][bucketKeys/8+i*3:], []uint64{k.w0, k.w1, k.w2})
			}
		}
	}
	return out
}
