package test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/shm"
	"github.com/holdfast-quic/holdfast/test/kit"
)

// smallSegment is a configuration whose segment has a size that a test can
// compute.
func smallSegment() (kit.Config, shm.Geometry) {
	g := shm.DefaultGeometry()
	g.TableEntries, g.Lanes, g.LaneBytes = 1<<14, 8, 128<<10
	c := kit.Config{}.With("table", fmt.Sprintf("{entries: %d}", g.TableEntries)).
		With("queue", fmt.Sprintf("{lanes: %d, lane_size: %d}", g.Lanes, g.LaneBytes))
	return c, g
}

// segmentOf finds the segment among the descriptors of a process.
func segmentOf(t *testing.T, pid int) (path string, st syscall.Stat_t) {
	t.Helper()
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	var size int64
	for _, l := range links {
		target, err := os.Readlink(l)
		if err != nil || !strings.Contains(target, "memfd:") {
			continue
		}
		var s syscall.Stat_t
		if err := syscall.Stat(l, &s); err == nil && s.Size > size {
			path, st, size = l, s, s.Size // the segment is the largest
		}
	}
	if path == "" {
		t.Fatalf("process %d has no segment", pid)
	}
	return path, st
}

// C086, C089: all generations share one segment, whose size follows the
// formula and whose use does not grow with reloads.
func TestOneSegmentForAllGenerations(t *testing.T) {
	c, g := smallSegment()
	in := startWith(t, c)
	f := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 20, Interval: 50 * time.Millisecond})
	_, first := segmentOf(t, in.PID())
	if first.Size != g.Size() {
		t.Errorf("segment has %d bytes, the formula gives %d", first.Size, g.Size())
	}
	var early int64
	for i := range kit.Scale(12, 100) {
		reload(t, in)
		_, now := segmentOf(t, in.PID())
		if now.Ino != first.Ino || now.Size != first.Size {
			t.Errorf("after reload %d the segment is another", i+1)
		}
		if i == 3 {
			early = now.Blocks
		}
	}
	for _, pid := range in.WorkerPIDs() {
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) || err == nil && len(maps) == 0 {
			continue // of a generation that has just ended
		}
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for line := range strings.Lines(string(maps)) {
			f := strings.Fields(line)
			if len(f) < 6 || !strings.Contains(line, "memfd:") {
				continue
			}
			found = found || f[4] == fmt.Sprint(first.Ino)
			if strings.Contains(f[1], "x") { // C084
				t.Errorf("worker %d may execute shared memory: %s", pid, line)
			}
		}
		if !found {
			t.Errorf("worker %d has not mapped the segment", pid)
		}
	}
	f.Stop().MustBeClean(t)
	awaitOnlyCurrent(t, in, 10*time.Second)
	_, last := segmentOf(t, in.PID())
	t.Logf("segment of %d KiB uses %d KiB, %d KiB after 4 reloads", last.Size>>10, last.Blocks/2, early/2)
	// Slots are used in turn; what a retired one used is given back.
	if last.Blocks > early*3/2 {
		t.Errorf("segment uses %d KiB, %d KiB after 4 reloads", last.Blocks/2, early/2)
	}
}

// C074, C084: a small shared memory file system, mounted noexec, matters to
// nobody, and no peer can shrink the segment under another.
func TestSharedMemoryFileSystemDoesNotMatter(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mount namespaces need root")
	}
	const mount = `mount -t tmpfs -o size=1m,noexec,nosuid,nodev none /dev/shm && head -c 2m /dev/zero > /dev/shm/full 2>/dev/null; exec "$@"`
	if out, err := exec.Command("unshare", "--mount", "sh", "-c", mount, "sh", "true").CombinedOutput(); err != nil {
		t.Skipf("mount namespaces are not to be had here: %v: %s", err, out)
	}
	in := kit.Start(t, kit.Options{Prefix: []string{"unshare", "--mount", "sh", "-c", mount, "sh"}})
	f := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 20, Interval: 50 * time.Millisecond})
	for range 3 {
		reload(t, in)
	}
	f.Stop().MustBeClean(t)
	path, st := segmentOf(t, in.PID())
	for _, size := range []int64{0, 4096, st.Size * 2} {
		if err := os.Truncate(path, size); err == nil {
			t.Errorf("the segment could be truncated to %d bytes", size)
		}
	}
	whoami(t, dial(t, in.Client()))
}

// C080: a segment of another layout is refused before anything is written.
func TestOtherLayoutsAreRefused(t *testing.T) {
	g := shm.Geometry{Slots: 4, TableEntries: 64, Lanes: 2, LaneBytes: 4096}
	for _, c := range []struct {
		name  string
		spoil func(region []byte)
		want  error
	}{
		{"other major version", func(b []byte) { binary.LittleEndian.PutUint32(b[8:], shm.ABIMajor+1) }, shm.ErrABIVersion},
		{"other size", func(b []byte) { binary.LittleEndian.PutUint64(b[16:], 1<<20) }, nil},
		{"other slots", func(b []byte) { binary.LittleEndian.PutUint32(b[24:], 8) }, nil},
		{"no magic", func(b []byte) { b[0] ^= 1 }, shm.ErrNotSegment},
	} {
		region := make([]byte, g.Size())
		if err := shm.Format(region, g, [16]byte{1}); err != nil {
			t.Fatal(err)
		}
		c.spoil(region)
		before := string(region)
		_, err := shm.Open(region)
		if err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
		if string(region) != before {
			t.Errorf("%s: the refused segment was written to", c.name)
		}
	}
}

// C081: what an instance of another user left gives a clear reason, not a
// panic.
func TestLeftoversOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("another user needs root")
	}
	if _, err := exec.LookPath("setpriv"); err != nil {
		t.Skip("setpriv is not installed")
	}
	in := start(t, 1)
	in.Check()
	in.Kill()
	for _, path := range []string{in.Dir, in.ConfigPath} {
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// The other user must be able to run the test binary at all.
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	asUser := []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"}
	if err := exec.Command(asUser[0], append(asUser[1:], "test", "-x", self)...).Run(); err != nil {
		t.Skip("the test binary lies where another user cannot run it")
	}
	cmd := in.Command(asUser, "run", "--config", in.ConfigPath, "--name", in.Name, "--state-dir", in.StateDir)
	out, err := cmd.CombinedOutput()
	if err == nil || cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("exit code %d", cmd.ProcessState.ExitCode())
	}
	if !containsAll(string(out), in.RuntimeDir, "permission") && !containsAll(string(out), in.RuntimeDir, "belongs") {
		t.Errorf("reason: %s", out)
	}
	in.Restart()
	whoami(t, dial(t, in.Client()))
}

// C082: two instances of one user do not meet.
func TestTwoInstancesAreIndependent(t *testing.T) {
	a, b := start(t, 1), start(t, 1)
	fa := kit.StartFleet(t, kit.FleetOptions{Client: a.Client(), N: 10, Interval: 50 * time.Millisecond})
	fb := kit.StartFleet(t, kit.FleetOptions{Client: b.Client(), N: 10, Interval: 50 * time.Millisecond})
	reload(t, a)
	reload(t, b)
	fa.Stop().MustBeClean(t)
	a.Kill()
	reload(t, b)
	whoami(t, dial(t, b.Client()))
	fb.Stop().MustBeClean(t)
}

// C083: each thing that keeps an instance from starting has a reason of its
// own, with the path and the system's word.
func TestReasonsOfAFailedStart(t *testing.T) {
	in := kit.Prepare(t, kit.Options{})
	file := filepath.Join(in.Dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(in.Dir, "nowhere.yaml")
	seen := map[string]string{}
	for _, c := range []struct {
		name   string
		prefix []string
		args   []string
		words  []string
	}{
		{"no configuration", nil, []string{"--config", missing, "--state-dir", in.StateDir}, []string{missing, "no such file"}},
		{"state directory is a file", nil, []string{"--config", in.ConfigPath, "--state-dir", file}, []string{file}},
		{
			"runtime directory below a file", nil,
			[]string{"--config", in.ConfigPath, "--state-dir", in.StateDir, "--runtime-dir", file + "/run"},
			[]string{file, "not a directory"},
		},
		{
			"too few descriptors",
			[]string{"prlimit", "--nofile=16:16"},
			[]string{"--config", in.ConfigPath, "--state-dir", in.StateDir},
			[]string{"descriptors", "16"},
		},
	} {
		cmd := in.Command(c.prefix, append([]string{"run", "--name", in.Name}, c.args...)...)
		out, err := cmd.CombinedOutput()
		text := string(out)
		if err == nil || strings.Contains(text, "goroutine ") || strings.Contains(text, "panic") {
			t.Errorf("%s: %v: %s", c.name, err, text)
		}
		if !containsAll(text, c.words...) {
			t.Errorf("%s: reason %q lacks one of %q", c.name, text, c.words)
		}
		if other, ok := seen[text]; ok {
			t.Errorf("%s and %s have the same reason", c.name, other)
		}
		seen[text] = c.name
	}
}

// C087: a normal stop, by whatever signal, leaves nothing, and the next start
// works.
func TestStopsLeaveNothing(t *testing.T) {
	in := start(t, 1)
	for i := range kit.Scale(4, 20) {
		whoami(t, dial(t, in.Client()))
		in.Check()
		sig := []syscall.Signal{syscall.SIGTERM, syscall.SIGQUIT}[i%2]
		in.Signal(sig)
		if code := in.AwaitExit(15 * time.Second); code != 0 {
			t.Errorf("exit code %d after %v", code, sig)
		}
		in.MustBeGone()
		in.Restart()
	}
}
