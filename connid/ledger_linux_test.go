package connid

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

var ledgerKey = []byte("0123456789abcdef")

// epoch is a clock that has no say in where ranges begin, so that a test of
// what the file remembers cannot be saved by the time.
func epoch() time.Time { return time.Unix(0, 0) }

func createLedger(t *testing.T) (*Ledger, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nonces")
	l, err := CreateLedger(path, ledgerKey)
	if err != nil {
		t.Fatal(err)
	}
	l.now = epoch
	return l, path
}

func openLedger(t *testing.T, path string) *Ledger {
	t.Helper()
	l, err := OpenLedger(path)
	if err != nil {
		t.Fatal(err)
	}
	l.now = epoch
	return l
}

func lease(t *testing.T, l *Ledger, n uint64) Range {
	t.Helper()
	r, err := l.Lease(n)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func checkDisjoint(t *testing.T, ranges []Range) {
	t.Helper()
	slices.SortFunc(ranges, func(a, b Range) int {
		if a.From < b.From {
			return -1
		}
		return 1
	})
	for i := 1; i < len(ranges); i++ {
		if ranges[i].From < ranges[i-1].To {
			t.Fatalf("ranges %v and %v have nonces in common", ranges[i-1], ranges[i])
		}
	}
}

func TestLedgerGoesOn(t *testing.T) {
	l, path := createLedger(t)
	for i, want := range []Range{{0, 10}, {10, 11}, {11, 11}, {11, 1011}} {
		if got := lease(t, l, want.Len()); got != want {
			t.Fatalf("lease %d = %v, want %v", i, got, want)
		}
	}
	if got, want := lease(t, openLedger(t, path), 5), (Range{1011, 1016}); got != want {
		t.Errorf("lease after opening again = %v, want %v", got, want)
	}
	if got, want := lease(t, l, 5), (Range{1016, 1021}); got != want {
		t.Errorf("lease of the first object = %v, want %v", got, want)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != 0o600 {
			t.Errorf("%s has mode %v, want -rw-------", e.Name(), info.Mode())
		}
		if strings.HasSuffix(e.Name(), ".tmp") {
			t.Errorf("%s is left", e.Name())
		}
	}
}

func TestLedgerModeWhateverTheUmask(t *testing.T) {
	for _, umask := range []int{0, 0o777} {
		t.Run("", func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "nonces")
			old := syscall.Umask(umask)
			l, err := CreateLedger(path, ledgerKey)
			syscall.Umask(old)
			if err != nil {
				t.Fatal(err)
			}
			if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
				t.Errorf("umask %04o: %v, %v", umask, info, err)
			}
			if os.Geteuid() == 0 { // others could not open a lock file of mode 0
				lease(t, l, 1)
			}
		})
	}
}

func TestLedgerIsBoundToItsKey(t *testing.T) {
	l, path := createLedger(t)
	for _, l := range []*Ledger{l, openLedger(t, path)} {
		if !l.BoundTo(ledgerKey) || l.BoundTo(make([]byte, 16)) || l.BoundTo(nil) {
			t.Error("the ledger does not know its key")
		}
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(raw), string(ledgerKey)) || strings.Contains(string(raw), "30313233") {
		t.Error("the key is in the file")
	}

	// Whoever still holds the old key must not lease nonces of the new one's ledger.
	other, err := CreateLedger(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	other.now = epoch
	if r, err := l.Lease(1); !errors.Is(err, ErrLedger) {
		t.Errorf("Lease after the key was replaced = %v, %v; want ErrLedger", r, err)
	}
	if got, want := lease(t, other, 1), (Range{0, 1}); got != want || !other.BoundTo(nil) {
		t.Errorf("lease of the new ledger = %v, want %v", got, want)
	}
}

func TestLedgerCorrupt(t *testing.T) {
	l, path := createLedger(t)
	lease(t, l, 1000)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	check := func(name string, content []byte) {
		t.Helper()
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenLedger(path); !errors.Is(err, ErrLedger) {
			t.Errorf("%s: OpenLedger: error %v, want ErrLedger", name, err)
		}
		if r, err := l.Lease(1); !errors.Is(err, ErrLedger) || r != (Range{}) {
			t.Errorf("%s: Lease = %v, %v; want ErrLedger", name, r, err)
		}
	}
	for n := range good {
		check("truncated", good[:n])
		for _, bit := range []byte{1, 0x20, 0x80} {
			bad := slices.Clone(good)
			bad[n] ^= bit
			check("flipped bit", bad)
		}
	}
	check("trailing newline", append(slices.Clone(good), '\n'))
	check("long", append(slices.Clone(good), make([]byte, 1<<20)...))
	check("zeros", make([]byte, len(good)))

	if err := os.WriteFile(path, good, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, want := lease(t, l, 1), (Range{1000, 1001}); got != want {
		t.Errorf("lease of the good file = %v, want %v", got, want)
	}
	// Now the same content is of the past.
	if err := os.WriteFile(path, good, 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := l.Lease(1); !errors.Is(err, ErrLedger) {
		t.Errorf("Lease of a file that went back = %v, %v; want ErrLedger", r, err)
	}
}

func TestLedgerMissing(t *testing.T) {
	l, path := createLedger(t)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if r, err := l.Lease(1); !errors.Is(err, ErrLedger) {
		t.Errorf("Lease = %v, %v; want ErrLedger", r, err)
	}
	if _, err := OpenLedger(path); !errors.Is(err, ErrLedger) {
		t.Errorf("OpenLedger: error %v, want ErrLedger", err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Error("something made the missing file")
	}
	if _, err := CreateLedger(filepath.Join(path, "no", "such"), nil); !errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrLedger) {
		t.Errorf("CreateLedger in no directory: error %v", err)
	}
}

func TestLedgerRefusesOthersFiles(t *testing.T) {
	tests := map[string]func(t *testing.T, path string){
		"symbolic link": func(t *testing.T, path string) {
			if err := errors.Join(os.Rename(path, path+".real"), os.Symlink(path+".real", path)); err != nil {
				t.Fatal(err)
			}
		},
		"mode": func(t *testing.T, path string) {
			if err := os.Chmod(path, 0o640); err != nil {
				t.Fatal(err)
			}
		},
		"directory": func(t *testing.T, path string) {
			if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o600)); err != nil {
				t.Fatal(err)
			}
		},
		"fifo": func(t *testing.T, path string) {
			if err := errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600)); err != nil {
				t.Fatal(err)
			}
		},
		"owner": func(t *testing.T, path string) {
			if os.Geteuid() != 0 {
				t.Skip("only root can give files away")
			}
			if err := os.Chown(path, 65534, -1); err != nil {
				t.Fatal(err)
			}
		},
	}
	for name, spoil := range tests {
		t.Run(name, func(t *testing.T) {
			l, path := createLedger(t)
			spoil(t, path)
			if _, err := OpenLedger(path); !errors.Is(err, ErrLedgerFile) || errors.Is(err, ErrLedger) {
				t.Errorf("OpenLedger: error %v, want ErrLedgerFile", err)
			}
			if r, err := l.Lease(1); !errors.Is(err, ErrLedgerFile) {
				t.Errorf("Lease = %v, %v; want ErrLedgerFile", r, err)
			}
		})
	}
}

// TestLedgerWritesThroughNoLink: links at the names that a write uses are
// replaced or refused, and what they point to stays as it was.
func TestLedgerWritesThroughNoLink(t *testing.T) {
	l, path := createLedger(t)
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, path+".tmp"); err != nil {
		t.Fatal(err)
	}
	lease(t, l, 1)
	if err := errors.Join(os.Remove(path), os.Symlink(victim, path)); err != nil {
		t.Fatal(err)
	}
	if _, err := CreateLedger(path, ledgerKey); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(path+".lock"), os.Symlink(victim, path+".lock")); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Lease(1); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("Lease with a link for a lock file: error %v, want ELOOP", err)
	}
	if b, err := os.ReadFile(victim); err != nil || string(b) != "precious" {
		t.Errorf("what the links point to is now %q, %v", b, err)
	}
}

func TestLedgerFailedWriteHandsOutNothing(t *testing.T) {
	l, path := createLedger(t)
	lease(t, l, 10)
	// A directory that is not empty can neither be removed nor written.
	if err := os.MkdirAll(filepath.Join(path+".tmp", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if r, err := l.Lease(10); err == nil || errors.Is(err, ErrLedger) || r != (Range{}) {
		t.Errorf("Lease = %v, %v; want another error and no range", r, err)
	}
	if err := os.RemoveAll(path + ".tmp"); err != nil {
		t.Fatal(err)
	}
	if got, want := lease(t, l, 10), (Range{10, 20}); got != want {
		t.Errorf("lease after the repair = %v, want %v", got, want)
	}
}

func TestLedgerFull(t *testing.T) {
	l, _ := createLedger(t)
	lease(t, l, math.MaxUint64-5)
	if r, err := l.Lease(6); !errors.Is(err, ErrLedgerFull) {
		t.Errorf("Lease of more than is left = %v, %v; want ErrLedgerFull", r, err)
	}
	if got, want := lease(t, l, 5), (Range{math.MaxUint64 - 5, math.MaxUint64}); got != want {
		t.Errorf("last lease = %v, want %v", got, want)
	}
}

// TestLedgerRestoredFromBackup: the clock keeps ranges apart where the file
// cannot.
func TestLedgerRestoredFromBackup(t *testing.T) {
	l, path := createLedger(t)
	clock := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	l.now = func() time.Time { return clock }
	backup, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	ranges := []Range{lease(t, l, 1<<20), lease(t, l, 1<<20)}

	if err := os.WriteFile(path, backup, 0o600); err != nil {
		t.Fatal(err)
	}
	clock = clock.Add(time.Second)
	restored := openLedger(t, path)
	restored.now = l.now
	ranges = append(ranges, lease(t, restored, 1<<20))
	clock = clock.Add(-time.Hour) // a clock that goes back changes nothing
	ranges = append(ranges, lease(t, restored, 1<<20))
	checkDisjoint(t, ranges)

	for _, wrong := range []time.Time{time.Unix(-1, 0), {}, time.Unix(math.MaxUint32, 0), time.Unix(math.MaxInt64, 0)} {
		clock = wrong
		next := lease(t, restored, 1)
		if want := ranges[len(ranges)-1].To; next.From != want {
			t.Errorf("clock at %d: range begins at %d, want %d", wrong.Unix(), next.From, want)
		}
		ranges = append(ranges, next)
	}
}

func TestLedgerConcurrent(t *testing.T) {
	first, path := createLedger(t)
	ledgers := []*Ledger{first, openLedger(t, path), openLedger(t, path)}
	var (
		mu     sync.Mutex
		ranges []Range
		wg     sync.WaitGroup
	)
	for i := range 6 {
		wg.Go(func() {
			for range 20 {
				r, err := ledgers[i%len(ledgers)].Lease(7)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				ranges = append(ranges, r)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(ranges) != 120 {
		t.Fatalf("%d leases, want 120", len(ranges))
	}
	checkDisjoint(t, ranges)
	if last := ranges[119].To; last != 120*7 {
		t.Errorf("the last nonce is %d, want %d: some were lost", last, 120*7)
	}
}

func FuzzDecodeRecord(f *testing.F) {
	f.Add(record{key: fingerprintOf(ledgerKey), next: 42}.encode())
	f.Add([]byte("connid nonce ledger 1\nkey 00\nnext 1\nsum 00\n"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, ok := decodeRecord(b)
		if ok && string(r.encode()) != string(b) {
			t.Fatalf("%q is accepted, though %q is how to write it", b, r.encode())
		}
	})
}

func TestRecordFitsTheLimit(t *testing.T) {
	if n := len((record{next: math.MaxUint64}).encode()); n > maxRecordLen {
		t.Errorf("the longest record has %d octets, more than %d", n, maxRecordLen)
	}
}
