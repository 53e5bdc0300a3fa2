package shm

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func create(t *testing.T, g Geometry) *Segment {
	t.Helper()
	s, err := Create(g)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// dup returns another descriptor of the segment's file, as a peer gets it.
func dup(t *testing.T, s *Segment) *os.File {
	t.Helper()
	fd, err := syscall.Dup(int(s.File().Fd()))
	if err != nil {
		t.Fatal(err)
	}
	syscall.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), "segment")
}

// used returns the memory that the segment's file holds.
func used(t *testing.T, s *Segment) int64 {
	t.Helper()
	st, err := s.File().Stat()
	if err != nil {
		t.Fatal(err)
	}
	return st.Sys().(*syscall.Stat_t).Blocks * 512
}

func TestAttachSeesTheSameMemory(t *testing.T) {
	a := create(t, DefaultGeometry())
	b, err := Attach(dup(t, a))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	o := assign(a, 1)[0]
	if _, err := a.Table().Insert(testID(1), o, KindEstablished, 1); err != nil {
		t.Fatal(err)
	}
	if hit, ok := b.Table().Lookup(testID(1), 1); !ok || hit.Owner != o {
		t.Errorf("%v, %v", hit, ok)
	}
	if a.Table().Hash(testID(2)) != b.Table().Hash(testID(2)) {
		t.Error("hashes differ")
	}
	mustCheck(t, b)
}

func TestSegmentIsSealedAndPrivate(t *testing.T) {
	s := create(t, small(16))
	if err := s.File().Truncate(pageBytes); err == nil {
		t.Error("shrunk")
	}
	if err := s.File().Truncate(2 * s.Geometry().Size()); err == nil {
		t.Error("grown")
	}
	st, err := s.File().Stat()
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
}

func TestSecretsDiffer(t *testing.T) {
	a, b := create(t, small(16)), create(t, small(16))
	if a.Table().Hash(testID(1)) == b.Table().Hash(testID(1)) {
		t.Error("two segments hash alike")
	}
}

func TestMemoryIsUsedOnlyWhereTouched(t *testing.T) {
	s := create(t, DefaultGeometry())
	if n := used(t, s); n > 16<<10 {
		t.Errorf("a new segment uses %d bytes", n)
	}
	o := assign(s, 1)[0]
	if _, err := s.Table().Insert(testID(1), o, KindEstablished, 1); err != nil {
		t.Fatal(err)
	}
	before := used(t, s)
	sweepAll(s.Table(), 1, Limits{})
	s.Table().Reclaim(Owner{Slot: 9, Incarnation: 9})
	if after := used(t, s); after != before {
		t.Errorf("sweep and reclaim of an empty table took %d bytes", after-before)
	}
	mustCheck(t, s)
	for i := range s.Queue(5)[:1<<20] {
		s.Queue(5)[i] = 1
	}
	if n := used(t, s); n < 1<<20 {
		t.Fatalf("only %d bytes used", n)
	}
	if err := s.PunchQueue(5); err != nil {
		t.Fatal(err)
	}
	if n := used(t, s); n > 1<<19 || s.Queue(5)[0] != 0 {
		t.Errorf("still %d bytes used after punching", n)
	}
}

func TestAttachRefuses(t *testing.T) {
	plain, err := os.Create(filepath.Join(t.TempDir(), "plain"))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if _, err := plain.Write(format(t, small(16))); err != nil {
		t.Fatal(err)
	}
	if _, err := Attach(plain); !errors.Is(err, ErrNotSegment) {
		t.Errorf("plain file: %v", err)
	}

	open, err := memfd("open")
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if _, err := open.Write(format(t, small(16))); err != nil {
		t.Fatal(err)
	}
	if _, err := Attach(open); !errors.Is(err, ErrNotSegment) {
		t.Errorf("without seals: %v", err)
	}

	s := create(t, small(16))
	s.view.Store32(headerMajor, ABIMajor+1)
	f := dup(t, s)
	defer f.Close()
	if _, err := Attach(f); !errors.Is(err, ErrABIVersion) {
		t.Errorf("other major: %v", err)
	}
	s.view.Store32(headerMajor, ABIMajor)
	s.view.Store64(headerMagic, 1)
	if _, err := Attach(f); !errors.Is(err, ErrNotSegment) {
		t.Errorf("other magic: %v", err)
	}

	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if _, err := Attach(r); !errors.Is(err, ErrNotSegment) {
		t.Errorf("pipe: %v", err)
	}
}

func TestCreateAndCloseLeaveNoDescriptor(t *testing.T) {
	count := func() int {
		d, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(d)
	}
	before := count()
	for range 20 {
		s, err := Create(small(16))
		if err != nil {
			t.Fatal(err)
		}
		f := dup(t, s)
		if _, err := Attach(f); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Create(Geometry{}); !errors.Is(err, ErrGeometry) {
		t.Error(err)
	}
	if after := count(); after != before {
		t.Errorf("%d descriptors, were %d", after, before)
	}
}
