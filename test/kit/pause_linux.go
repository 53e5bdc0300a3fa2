package kit

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Pause stops processes and returns when no thread of theirs runs any more.
// They go on with resume, or at the end of the test.
func Pause(t testing.TB, pids ...int) (resume func()) {
	t.Helper()
	resume = sync.OnceFunc(func() {
		for _, pid := range pids {
			syscall.Kill(pid, syscall.SIGCONT)
		}
	})
	t.Cleanup(resume)
	for _, pid := range pids {
		syscall.Kill(pid, syscall.SIGSTOP)
	}
	// The signal is only sent when kill returns; threads run on until each has
	// taken notice.
	Eventually(t, 10*time.Second, "processes stopped", func() error {
		for _, pid := range pids {
			if !stopped(pid) {
				return fmt.Errorf("process %d runs", pid)
			}
		}
		return nil
	})
	return resume
}

// SocketDrops returns what the kernel says in /proc/net about the drops of
// each UDP socket on a port, in rising order.
func SocketDrops(t testing.TB, port int) []int {
	t.Helper()
	var drops []int
	suffix := fmt.Sprintf(":%04X", port)
	for _, path := range []string{"/proc/net/udp", "/proc/net/udp6"} {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // no IPv6
		}
		for line := range strings.Lines(string(data)) {
			f := strings.Fields(line)
			if len(f) < 3 || !strings.HasSuffix(f[1], suffix) {
				continue
			}
			n, err := strconv.Atoi(f[len(f)-1])
			if err != nil {
				t.Fatalf("%s: %q: %v", path, line, err)
			}
			drops = append(drops, n)
		}
	}
	slices.Sort(drops)
	return drops
}
