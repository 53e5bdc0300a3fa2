package test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
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
