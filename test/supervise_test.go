package test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/test/kit"
)

// noZombies verifies that no child of the supervisor stays unreaped.
func noZombies(t *testing.T, in *kit.Instance) {
	t.Helper()
	kit.Eventually(t, time.Second, "no zombie", func() error {
		for pid, zombie := range kit.Children(in.PID()) {
			if zombie {
				return fmt.Errorf("process %d", pid)
			}
		}
		return nil
	})
}

// C054: reloads and crashes leave no zombies, and a reload starts no process
// that stays.
func TestNoZombies(t *testing.T) {
	in := start(t, 2)
	for i := range kit.Scale(10, 300) {
		reload(t, in)
		if i%3 == 0 {
			kit.Signal(in.WorkerPIDs(in.Current())[0], syscall.SIGKILL)
		}
		noZombies(t, in)
	}
	kit.Eventually(t, 20*time.Second, "all workers serve", func() error { return allServe(in, 2) })
	noZombies(t, in)
}

// C054: as PID 1 of a container.
func TestAsFirstProcessOfAContainer(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("PID namespaces need root")
	}
	if out, err := exec.Command("unshare", "--pid", "--fork", "true").CombinedOutput(); err != nil {
		t.Skipf("PID namespaces are not to be had here: %v: %s", err, out)
	}
	in := kit.Start(t, kit.Options{
		Config: kit.Config{Workers: 2},
		Prefix: []string{"unshare", "--pid", "--fork", "--mount-proc", "--kill-child=SIGKILL"},
	})
	f := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 10, Interval: 100 * time.Millisecond})
	for range kit.Scale(5, 300) {
		reload(t, in)
	}
	if s := in.Status(); s.PID != 1 {
		t.Errorf("the supervisor is process %d of its namespace", s.PID)
	}
	f.Stop().MustBeClean(t)
	awaitOnlyCurrent(t, in, 10*time.Second)
	noZombiesBelow := func() {
		t.Helper()
		kit.Eventually(t, time.Second, "no zombie", func() error {
			for pid := range kit.Children(in.PID()) {
				for child, zombie := range kit.Children(pid) {
					if zombie {
						return fmt.Errorf("process %d", child)
					}
				}
			}
			return nil
		})
	}
	noZombiesBelow()
	// Processes that somebody else in the container left behind become its
	// children, and workers are.
	first := -1
	for pid := range kit.Children(in.PID()) {
		first = pid
	}
	enter := []string{"-t", strconv.Itoa(first), "--pid", "--mount"}
	for range 20 {
		line := append(slices.Clone(enter), "sh", "-c", "(sleep 0.1 & sleep 0.05 &) & exit 0")
		if out, err := exec.Command("nsenter", line...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	for range 3 {
		victim := in.WorkerPIDs(in.Current())[0] // numbered by the container
		if out, err := exec.Command("nsenter", append(slices.Clone(enter), "kill", "-9", strconv.Itoa(victim))...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		kit.Eventually(t, 20*time.Second, "all workers serve", func() error { return allServe(in, 2) })
		noZombiesBelow()
	}
	in.Check()
	if r := in.CLI("stop"); r.Code != 0 {
		t.Errorf("stop: exit code %d: %s", r.Code, r.Stderr)
	}
	if code := in.AwaitExit(10 * time.Second); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// C055: the supervisor's descriptors do not grow with the number of reloads.
func TestReloadsLeakNoDescriptor(t *testing.T) {
	in := start(t, 2)
	// The slots of two generations are in turn in use; after a few rounds
	// every slot has been.
	for range 4 {
		reload(t, in)
		awaitOnlyCurrent(t, in, 10*time.Second)
	}
	before := kit.DescriptorTargets(in.PID())
	for i := range kit.Scale(20, 200) {
		if i%2 == 0 {
			c := dial(t, in.Client())
			whoami(t, c)
			c.Close()
		}
		reload(t, in)
		awaitOnlyCurrent(t, in, 10*time.Second)
	}
	after := kit.DescriptorTargets(in.PID())
	if len(after) > len(before)+2 {
		slices.Sort(before)
		slices.Sort(after)
		t.Errorf("%d descriptors, %d before:\n%v\n%v", len(after), len(before), after, before)
	}
}

// C056: when descriptors run out a reload is refused; nothing crashes, and
// once there are some again reload works.
func TestReloadIsRefusedWithoutDescriptors(t *testing.T) {
	if _, err := exec.LookPath("prlimit"); err != nil {
		t.Skip("prlimit is not installed")
	}
	const limit = 72
	in := kit.Start(t, kit.Options{
		Config: kit.Config{Workers: 2}.With("drain", "{max_generations: 64, overflow: wait, timeout: 1h}"),
		Prefix: []string{"prlimit", fmt.Sprintf("--nofile=%d:%d", limit, limit)},
	})
	var held []*kit.Client
	refused := ""
	for range 60 {
		c := dial(t, in.Client())
		whoami(t, c)
		held = append(held, c)
		if err := in.ReloadAPI(); err != nil {
			refused = err.Error()
			break
		}
	}
	if refused == "" {
		t.Fatalf("60 reloads with %d descriptors", limit)
	}
	t.Logf("after %d generations: %s", len(held), refused)
	if !containsAll(refused, "file") && !containsAll(refused, "descriptor") {
		t.Errorf("reason %q", refused)
	}
	for i, c := range held {
		if c.Err() != nil {
			t.Errorf("connection %d lost by %s", i, kit.Cause(c.Err()))
		}
		whoami(t, c)
		c.Close()
	}
	awaitOnlyCurrent(t, in, 10*time.Second)
	reload(t, in)
}

// C057: callers of the admin socket that hang up or dawdle cost nothing.
func TestRudeCallersOfTheAdminSocket(t *testing.T) {
	in := start(t, 1)
	in.Status()
	socket := filepath.Join(in.RuntimeDir, "admin.sock")
	before := kit.Descriptors(in.PID())
	var dawdlers []net.Conn
	for i := range kit.Scale(300, 10000) {
		switch i % 3 {
		case 0:
			in.Status()
		case 1: // hangs up in the middle of its own request
			c, err := net.Dial("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprint(c, "GET /v1/sta")
			c.Close()
		case 2: // asks and does not read
			if len(dawdlers) >= 50 {
				continue
			}
			c, err := net.Dial("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprint(c, strings.Repeat("GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n", 20))
			dawdlers = append(dawdlers, c)
		}
	}
	begin := time.Now()
	in.Status()
	if took := time.Since(begin); took > 500*time.Millisecond {
		t.Errorf("status took %v", took)
	}
	reload(t, in)
	for _, c := range dawdlers {
		c.Close()
	}
	kit.Eventually(t, 10*time.Second, "descriptors given back", func() error {
		// A few may have come with the reload's second set of slots.
		if n := kit.Descriptors(in.PID()); n > before+4 {
			return fmt.Errorf("%d, %d before", n, before)
		}
		return nil
	})
}

// C058: every answer about the state is whole, whatever happens meanwhile.
func TestStatusIsAlwaysWhole(t *testing.T) {
	in := start(t, 2)
	stop, done := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		for {
			select {
			case <-stop:
				done <- n
				return
			default:
			}
			s, err := in.TryStatus()
			if err != nil || s.PID != in.PID() || len(s.In("current")) != 1 {
				t.Errorf("status %+v, %v", s, err)
			}
			n++
			time.Sleep(10 * time.Millisecond) // the scenario's own pace
		}
	}()
	for i := range kit.Scale(10, 20) {
		reload(t, in)
		if i%2 == 0 {
			kit.Signal(in.WorkerPIDs(in.Current())[0], syscall.SIGKILL)
		}
	}
	close(stop)
	t.Logf("%d answers", <-done)
	kit.Eventually(t, 20*time.Second, "all workers serve", func() error { return allServe(in, 2) })
}

// C066: the PID file is whole at every moment and follows its path.
func TestPIDFileIsAlwaysWhole(t *testing.T) {
	in := kit.Prepare(t, kit.Options{})
	dir := filepath.Join(in.Dir, "pids")
	link := filepath.Join(in.Dir, "link")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	config := func(d string) kit.Config {
		return in.Config.With("pid_file", fmt.Sprintf("%q", filepath.Join(d, "gateway.pid")))
	}
	in.WriteConfig(config(dir))
	in.Launch()
	in.AwaitReady()
	want := fmt.Sprint(in.PID())
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, path := range []string{filepath.Join(dir, "gateway.pid"), filepath.Join(in.RuntimeDir, "holdfast.pid")} {
				data, err := os.ReadFile(path)
				if got := strings.TrimSpace(string(data)); err != nil || got != want {
					t.Errorf("%s: %q, %v; want %s", path, got, err, want)
				}
			}
			time.Sleep(time.Millisecond) // the scenario's own pace
		}
	}()
	for _, d := range []string{link, dir, link} {
		in.WriteConfig(config(d))
		reload(t, in)
	}
	in.WriteRaw("broken: [")
	if err := in.ReloadAPI(); err == nil {
		t.Error("a broken configuration was taken")
	}
	close(stop)
	<-done
}

// C068: workers have the configured limit of open files, every time.
func TestWorkersHaveTheConfiguredFileLimit(t *testing.T) {
	in := startWith(t, kit.Config{}.With("limits", "{nofile: 4096}"))
	for range kit.Scale(5, 200) {
		for _, pid := range in.WorkerPIDs(in.Current()) {
			data, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(data)) {
				if f := strings.Fields(line); strings.HasPrefix(line, "Max open files") && f[3] != "4096" {
					t.Errorf("worker %d: %s", pid, line)
				}
			}
		}
		reload(t, in)
	}
}
