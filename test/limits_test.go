package test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/test/kit"
)

// C085: no huge pages are asked for, so none can be missing: the segment is
// mapped with ordinary pages by supervisor and workers, before and after a
// reload.
func TestTheSegmentNeedsNoHugePages(t *testing.T) {
	in := start(t, 2)
	f := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 10, Interval: 50 * time.Millisecond})
	reload(t, in)
	_, segment := segmentOf(t, in.PID())
	for _, pid := range append(in.WorkerPIDs(), in.PID()) {
		mapping := mappingOf(t, pid, fmt.Sprint(segment.Ino))
		if mapping == nil {
			t.Errorf("process %d has not mapped the segment", pid)
			continue
		}
		if page := fmt.Sprintf("%d kB", os.Getpagesize()>>10); mapping["KernelPageSize"] != page {
			t.Errorf("process %d maps it with pages of %s", pid, mapping["KernelPageSize"])
		}
		for _, flag := range strings.Fields(mapping["VmFlags"]) {
			if flag == "ht" || flag == "hg" { // hugetlb; MADV_HUGEPAGE
				t.Errorf("process %d asks for huge pages: %s", pid, mapping["VmFlags"])
			}
		}
	}
	f.Stop().MustBeClean(t)
}

// mappingOf returns what /proc/PID/smaps says of the mapping of a shared
// memory file, nil when there is none.
func mappingOf(t *testing.T, pid int, inode string) map[string]string {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var found map[string]string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		if strings.Contains(name, " ") { // the head of the next mapping
			if found != nil {
				return found
			}
			if head := strings.Fields(lines.Text()); len(head) > 5 && head[4] == inode && strings.Contains(head[5], "memfd:") {
				found = map[string]string{}
			}
		} else if found != nil {
			found[name] = strings.TrimSpace(value)
		}
	}
	return found
}

// memoryGroup makes a control group with a memory limit and returns the
// command line that runs a program in it. The test is skipped where that is
// not allowed.
func memoryGroup(t *testing.T, limit int64) (prefix []string) {
	t.Helper()
	root, file := "/sys/fs/cgroup", "memory.max"
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err == nil {
		root, file = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
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
	if err := os.WriteFile(filepath.Join(dir, file), fmt.Append(nil, limit), 0o600); err != nil {
		t.Skipf("no memory limit can be set: %v", err)
	}
	return []string{"sh", "-c", `echo $$ > "$0/cgroup.procs" && exec "$@"`, dir}
}

// C086: a table that does not fit the memory limit of the control group is
// refused by a start that names both.
func TestTableBeyondTheMemoryLimitIsRefused(t *testing.T) {
	const limit, entries = 64 << 20, 4 << 20
	in := kit.Prepare(t, kit.Options{
		Config: kit.Config{}.With("table", fmt.Sprintf("{entries: %d}", entries)),
		Prefix: memoryGroup(t, limit),
	})
	in.Launch()
	if code := in.AwaitExit(10 * time.Second); code != 1 {
		t.Errorf("exit code %d", code)
	}
	if log := in.Log(); !containsAll(log, fmt.Sprint(limit), fmt.Sprint(entries), "table.entries", "limit") {
		t.Errorf("the reason does not name limit and need: %s", log)
	}
}

// C086: within the limit generation after generation shares the one table, so
// nobody is killed for memory.
func TestReloadsStayWithinTheMemoryLimit(t *testing.T) {
	const entries = 4 << 20
	in := kit.Start(t, kit.Options{
		Config: kit.Config{}.With("table", fmt.Sprintf("{entries: %d}", entries)).With("drain", "{timeout: 2s, stop_timeout: 1s}"),
		Prefix: memoryGroup(t, entries*32+64<<20),
	})
	f := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 20, Interval: 50 * time.Millisecond, Reconnect: true})
	for range 10 {
		reload(t, in)
	}
	whoami(t, dial(t, in.Client()))
	f.Stop()
	if s := in.Status(); s.Counter("worker_crashes") > 0 || s.Counter("reloads_ok") < 10 {
		t.Errorf("%d workers ended, %d reloads done", s.Counter("worker_crashes"), s.Counter("reloads_ok"))
	}
}

// withoutNetAdmin is the command line that runs a program without the right to
// exceed the host's limit of socket buffers.
func withoutNetAdmin(t *testing.T) []string {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil
	}
	prefix := []string{"setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"}
	if out, err := exec.Command(prefix[0], append(prefix[1:], "true")...).CombinedOutput(); err != nil {
		t.Skipf("setpriv: %v: %s", err, out)
	}
	return prefix
}

// C095: where the host allows smaller buffers than are wanted, the log says so
// once, with the setting that helps, however many sockets there are.
func TestSmallSocketBuffersAreHintedAtOnce(t *testing.T) {
	const wanted = 1 << 30
	in := kit.Start(t, kit.Options{
		Config: kit.Config{}.With("sockets", fmt.Sprintf("{receive_buffer: %d}", wanted)),
		Prefix: withoutNetAdmin(t),
	})
	in.WriteConfig(in.Config.WithWorkers(4)) // makes more sockets
	in.Reload()
	var hints []string
	for line := range strings.Lines(in.Log()) {
		if strings.Contains(line, "rmem_max") {
			hints = append(hints, line)
		}
	}
	if len(hints) != 1 || !containsAll(hints[0], "warn", "wanted", fmt.Sprintf("net.core.rmem_max=%d", wanted)) {
		t.Errorf("%d hints: %q", len(hints), hints)
	}
}
