package test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/test/kit"
)

// memoryGroup is a control group whose memory a test limits.
type memoryGroup struct{ dir string }

// newMemoryGroup makes a control group. The test is skipped where that is not
// allowed.
func newMemoryGroup(t *testing.T) *memoryGroup {
	t.Helper()
	root := "/sys/fs/cgroup"
	if _, err := os.Stat(root + "/memory"); err == nil {
		root += "/memory" // version 1
	}
	dir, err := os.MkdirTemp(root, "holdfast-test")
	if err != nil {
		t.Skipf("no control group can be made: %v", err)
	}
	t.Cleanup(func() {
		// The kernel forgets the last process of a group with some delay.
		if err := kit.Poll(5*time.Second, func() error { return syscall.Rmdir(dir) }); err != nil {
			t.Errorf("remove %s: %v", dir, err)
		}
	})
	return &memoryGroup{dir}
}

// prefix is the command line that runs a program in the group.
func (g *memoryGroup) prefix() []string {
	return []string{"sh", "-c", `echo $$ > "$0/cgroup.procs" && exec "$@"`, g.dir}
}

// limit sets the most bytes that the group may use, with no way out by swap.
func (g *memoryGroup) limit(t *testing.T, bytes int64) {
	t.Helper()
	for _, name := range []string{"memory.swap.max", "memory.swappiness"} { // of version 2, of 1
		path := filepath.Join(g.dir, name)
		if _, err := os.Stat(path); err == nil {
			if err := os.WriteFile(path, []byte("0"), 0o600); err != nil {
				t.Skipf("swap cannot be turned off: %v", err)
			}
		}
	}
	for _, name := range []string{"memory.max", "memory.limit_in_bytes"} {
		path := filepath.Join(g.dir, name)
		if _, err := os.Stat(path); err != nil {
			continue
		}
		if err := os.WriteFile(path, fmt.Append(nil, bytes), 0o600); err != nil {
			t.Skipf("no memory limit can be set: %v", err)
		}
		return
	}
	t.Skip("the memory controller is not to be had here")
}

// kills returns how many processes of the group the kernel has killed because
// the limit was reached.
func (g *memoryGroup) kills(t *testing.T) int {
	t.Helper()
	for _, name := range []string{"memory.events", "memory.oom_control"} {
		text, err := os.ReadFile(filepath.Join(g.dir, name))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) == 2 && f[0] == "oom_kill" {
				n, err := strconv.Atoi(f[1])
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
		}
	}
	t.Skip("the kernel does not count what it kills for memory")
	return 0
}

// peak returns the most bytes that the group has used, 0 where the kernel does
// not tell.
func (g *memoryGroup) peak() int64 {
	for _, name := range []string{"memory.peak", "memory.max_usage_in_bytes"} {
		if text, err := os.ReadFile(filepath.Join(g.dir, name)); err == nil {
			n, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
			return n
		}
	}
	return 0
}

// need returns what a start under too small a limit says that it needs.
func need(t *testing.T, c kit.Config) int64 {
	t.Helper()
	const limit = 16 << 20
	g := newMemoryGroup(t)
	g.limit(t, limit)
	in := kit.Prepare(t, kit.Options{Config: c, Prefix: g.prefix()})
	in.Launch()
	if code := in.AwaitExit(10 * time.Second); code != 1 {
		t.Fatalf("exit code %d under a limit of %d bytes:\n%s", code, limit, in.LogTail(5))
	}
	m := regexp.MustCompile(`at least (\d+) are needed`).FindStringSubmatch(in.Log())
	if m == nil || !containsAll(in.Log(), fmt.Sprint(limit), "table.entries", "workers") {
		t.Fatalf("the reason does not name limit, need and cure:\n%s", in.LogTail(5))
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// C086: a table that does not fit the memory limit of the control group is
// refused by a start that names both.
func TestTableBeyondTheMemoryLimitIsRefused(t *testing.T) {
	const limit, entries = 64 << 20, 4 << 20
	g := newMemoryGroup(t)
	g.limit(t, limit)
	in := kit.Prepare(t, kit.Options{
		Config: kit.Config{}.With("table", fmt.Sprintf("{entries: %d}", entries)),
		Prefix: g.prefix(),
	})
	in.Launch()
	if code := in.AwaitExit(10 * time.Second); code != 1 {
		t.Errorf("exit code %d", code)
	}
	if log := in.Log(); !containsAll(log, fmt.Sprint(limit), fmt.Sprint(entries), "table.entries", "limit") {
		t.Errorf("the reason does not name limit and need: %s", log)
	}
}

// C086: with no more memory than the refusal names, and a page, generation
// after generation shares the one table, and nobody is killed. The table is the
// smallest one, so that nearly all of the need is that of processes.
func TestReloadsStayWithinTheMemoryThatARefusalNames(t *testing.T) {
	if kit.RaceDetector {
		t.Skip("the race detector needs memory that no product has to reckon with")
	}
	for _, workers := range []int{1, 4} {
		t.Run(fmt.Sprintf("%d workers", workers), func(t *testing.T) {
			// One draining generation at a time is what the need reckons with.
			c := kit.Config{Workers: workers}.With("table", "{entries: 4096}").
				With("drain", "{timeout: 1s, grace: 500ms, max_generations: 1}")
			g := newMemoryGroup(t)
			limit := need(t, c) + int64(os.Getpagesize())
			g.limit(t, limit)
			in := kit.Start(t, kit.Options{Config: c, Prefix: g.prefix()})
			f := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 20, Interval: 50 * time.Millisecond, Reconnect: true})
			for range 10 {
				before := in.Current()
				in.HUP()
				in.AwaitGeneration(before + 1)
			}
			whoami(t, dial(t, in.Client()))
			f.Stop()
			if n := g.kills(t); n > 0 {
				t.Errorf("%d processes were killed for memory", n)
			}
			if s := in.Status(); s.Counter("worker_crashes") > 0 || s.Counter("reloads_ok") < 10 {
				t.Errorf("%d workers ended, %d reloads done", s.Counter("worker_crashes"), s.Counter("reloads_ok"))
			}
			t.Logf("limit %d KiB, most in use %d KiB", limit>>10, g.peak()>>10)
		})
	}
}
