package supervisor

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/holdfast-quic/holdfast/shm"
)

func TestInstanceLock(t *testing.T) { // C082, C114
	dir := filepath.Join(t.TempDir(), "run")
	first, err := takeInstance(dir, 4711, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{adminName, "worker-3.sock"} { // in use by the first
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := takeInstance(dir, 4712, nil); !errors.Is(err, ErrRunning) || !strings.Contains(err.Error(), "4711") {
		t.Errorf("second start: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, adminName)); err != nil {
		t.Errorf("the refused start touched the first one's socket: %v", err)
	}
	first.lock.Close() // killed: nothing was removed
	second, err := takeInstance(dir, 4712, nil)
	if err != nil {
		t.Fatal(err)
	}
	// What workers may still listen on stays until it is known who lives.
	if left, _ := filepath.Glob(filepath.Join(dir, "*.sock")); len(left) != 1 || filepath.Base(left[0]) != "worker-3.sock" {
		t.Errorf("left by the killed one: %v", left)
	}
	if text, _ := os.ReadFile(filepath.Join(dir, lockName)); string(text) != "4712\n" {
		t.Errorf("lock holds %q", text)
	}
	second.release()
}

func TestRuntimeDirIsMadePrivate(t *testing.T) { // C141
	dir := filepath.Join(t.TempDir(), "run")
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	i, err := takeInstance(dir, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer i.release()
	if info, _ := os.Stat(dir); info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v", info.Mode().Perm())
	}
}

func TestRuntimeDirPathTooLong(t *testing.T) {
	_, err := takeInstance(filepath.Join(t.TempDir(), strings.Repeat("x", 120)), 1, nil)
	if !errors.Is(err, ErrUsage) {
		t.Errorf("%v", err)
	}
}

func TestPIDFileFollowsItsPath(t *testing.T) { // C066
	dir := t.TempDir()
	real, link := filepath.Join(dir, "real"), filepath.Join(dir, "link")
	if err := os.Mkdir(real, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(real, link); err != nil {
		t.Fatal(err)
	}
	i, err := takeInstance(filepath.Join(dir, "run"), 42, nil)
	if err != nil {
		t.Fatal(err)
	}
	one, same, other := filepath.Join(real, "p"), filepath.Join(link, "p"), filepath.Join(dir, "q")
	for _, path := range []string{one, same, one, other} {
		if err := i.writePID(path); err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(path); string(text) != "42\n" {
			t.Errorf("%s: %q %v", path, text, err)
		}
	}
	if _, err := os.Stat(one); err == nil {
		t.Error("the file at the former path is still there")
	}
	if text, _ := os.ReadFile(filepath.Join(i.dir, pidName)); string(text) != "42\n" {
		t.Errorf("%s: %q", pidName, text)
	}
	i.release()
	for _, path := range []string{other, filepath.Join(i.dir, pidName)} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s is left", path)
		}
	}
}

func TestSecondStartTouchesNothing(t *testing.T) { // C114
	r := newRunning(t, nil)
	second := newRig(t, func(s *rig) { s.opt.RuntimeDir, s.opt.StateDir = r.opt.RuntimeDir, r.opt.StateDir })
	err := second.s.Run(t.Context())
	if !errors.Is(err, ErrRunning) || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) || second.loads != 0 {
		t.Errorf("Run: %v after %d loads", err, second.loads)
	}
	r.mustReload()
}

func TestMemoryLimit(t *testing.T) { // C086
	g := shm.DefaultGeometry()
	g.TableEntries = 4 << 20 // 128 MiB
	limit := int64(64 << 20)
	e := &env{memory: func() (int64, string) { return limit, "/sys/fs/cgroup/memory.max" }}
	spec := &Spec{Workers: 3}
	need := int64(128<<20 + supervisorMemory + 2*3*workerMemory)
	err := checkMemory(e, spec, g)
	if !errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), "67108864") || !strings.Contains(err.Error(), fmt.Sprint(need)) {
		t.Errorf("%v", err)
	}
	for _, tc := range []struct {
		limit int64
		ok    bool
	}{{need, true}, {need - 1, false}, {0, true}} { // 0 is no limit
		limit = tc.limit
		if err := checkMemory(e, spec, g); (err == nil) != tc.ok {
			t.Errorf("limit %d, need %d: %v", limit, need, err)
		}
	}
}

func TestSegmentErrorsHaveTheirOwnTexts(t *testing.T) { // C083
	seen := map[string]error{}
	for _, cause := range []error{unix.ENOSYS, unix.EPERM, unix.EACCES, unix.EMFILE, unix.ENFILE, unix.ENOSPC, unix.ENOMEM, unix.EINVAL, unix.EFBIG} {
		err := segmentError(smallGeometry, fmt.Errorf("create segment: %w", os.NewSyscallError("memfd_create", cause)))
		hint := segmentHint(cause)
		if other, twice := seen[hint]; twice || hint == "" {
			t.Errorf("%v and %v have one hint %q", cause, other, hint)
		}
		seen[hint] = cause
		if !errors.Is(err, cause) || !strings.Contains(err.Error(), cause.Error()) || !strings.HasSuffix(err.Error(), hint) {
			t.Errorf("%v", err)
		}
	}
}

func TestFileDescriptorsWouldRunOut(t *testing.T) { // C056
	r := newRunning(t, nil)
	full := true
	if err := r.s.call(t.Context(), func(s *Supervisor) {
		real := s.env.files
		s.env.files = func() (int, int, error) {
			if full {
				return 250, 256, nil
			}
			return real()
		}
	}); err != nil {
		t.Fatal(err)
	}
	if _, reason := r.reload(); !strings.Contains(reason.Reason, "22 needed, 6 free of 256") {
		t.Errorf("reload: %+v", reason)
	}
	if err := r.s.call(t.Context(), func(*Supervisor) { full = false }); err != nil {
		t.Fatal(err)
	}
	r.mustReload()
}

// What would not fit any more is refused by a reload, and what may come to not
// fit is said.
func TestMemoryLimitAtReload(t *testing.T) { // C086
	core, logs := observer.New(zap.WarnLevel)
	r := newRunning(t, func(r *rig) { r.opt.Log = zap.New(core) })
	if n := logs.FilterMessageSnippet("memory").Len(); n != 0 {
		t.Errorf("%d warnings without a limit", n)
	}
	r.memory.Store(memoryNeed(&r.spec, smallGeometry, 2))
	r.mustReload()
	if w := logs.FilterMessageSnippet("memory").All(); len(w) != 1 || w[0].ContextMap()["source"] != "memory.max" {
		t.Errorf("warnings %v", w)
	}
	r.memory.Add(-1)
	code, body := r.call(http.MethodPost, "/v1/reload", nil)
	if code != http.StatusInternalServerError || !strings.Contains(string(body), "memory limit") {
		t.Errorf("reload: %d %s", code, body)
	}
}
