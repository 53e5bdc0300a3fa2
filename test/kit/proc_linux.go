package kit

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// processesOf returns the live processes that carry the mark of an instance.
// A zombie has no environment any more and is not among them.
func processesOf(mark string) []int {
	var pids []int
	want := []byte(envInstance + "=" + mark + "\x00")
	for _, pid := range allPIDs() {
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err == nil && pid != os.Getpid() && bytes.Contains(append(env, 0), want) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func allPIDs() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// procStat returns the fields of /proc/PID/stat after the command's name:
// index 0 is the state, 1 the parent.
func procStat(pid int) ([]string, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	s := string(data)
	return strings.Fields(s[strings.LastIndexByte(s, ')')+1:]), nil
}

// Children returns the processes whose parent is pid; zombies are marked.
func Children(pid int) map[int]bool {
	zombie := map[int]bool{}
	for _, p := range allPIDs() {
		st, err := procStat(p)
		if err == nil && len(st) > 1 && st[1] == strconv.Itoa(pid) {
			zombie[p] = st[0] == "Z"
		}
	}
	return zombie
}

// Alive says whether pid is a running process (a zombie is not).
func Alive(pid int) bool {
	st, err := procStat(pid)
	return err == nil && len(st) > 0 && st[0] != "Z"
}

// stopped says whether no thread of a process runs any more.
func stopped(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, file := range threads {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		_, fields, _ := bytes.Cut(data, []byte(") "))
		if !bytes.HasPrefix(fields, []byte("T")) {
			return false
		}
	}
	return true
}

// Descriptors counts the open descriptors of a process.
func Descriptors(pid int) int {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return -1
	}
	return len(entries)
}

// DescriptorTargets lists what the descriptors of a process point to.
func DescriptorTargets(pid int) []string {
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		return nil
	}
	var targets []string
	for _, l := range links {
		if t, err := os.Readlink(l); err == nil {
			targets = append(targets, t)
		}
	}
	return targets
}

// CPU returns the processor time that a process has used so far.
func CPU(pid int) time.Duration {
	st, err := procStat(pid)
	if err != nil || len(st) < 13 {
		return 0
	}
	u, _ := strconv.ParseInt(st[11], 10, 64)
	s, _ := strconv.ParseInt(st[12], 10, 64)
	const ticksPerSecond = 100 // USER_HZ is 100 on every Linux that Go runs on
	return time.Duration(u+s) * time.Second / ticksPerSecond
}

// Memory returns a field of /proc/PID/status in bytes, for example "RssAnon".
func Memory(pid int, field string) int64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			kb, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kb << 10
		}
	}
	return 0
}

// Signal sends a signal to a process.
func Signal(pid int, sig os.Signal) error {
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	return p.Signal(sig)
}

// BoundSockets returns the inodes of the UDP sockets and of the listening TCP
// sockets on a port, whatever their address, each in order.
func BoundSockets(port int) (udp, tcp []string) {
	// The kernel's tables are read in pieces, and a piece may miss an entry
	// while others come and go around it; all of three readings hardly do.
	for range 3 {
		for _, family := range []string{"", "6"} {
			udp = append(udp, socketTable("/proc/net/udp"+family, port, "07")...)
			tcp = append(tcp, socketTable("/proc/net/tcp"+family, port, "0A")...)
		}
	}
	return distinct(udp), distinct(tcp)
}

func distinct(inodes []string) []string {
	slices.Sort(inodes)
	return slices.Compact(inodes)
}

// socketTable returns the inodes of a table's sockets with that local port
// and state.
func socketTable(path string, port int, state string) []string {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	suffix := fmt.Sprintf(":%04X", port)
	var inodes []string
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) > 9 && strings.HasSuffix(f[1], suffix) && f[3] == state {
			inodes = append(inodes, f[9])
		}
	}
	return inodes
}

// MountUse returns how many bytes the file system at a path holds.
func MountUse(t testing.TB, path string) int64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		t.Skipf("%s: %v", path, err)
	}
	return int64(st.Blocks-st.Bfree) * st.Bsize
}
