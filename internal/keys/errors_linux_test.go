package keys

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"
)

var sentinels = []error{ErrDirectory, ErrPermission, ErrMode, ErrOwner, ErrCorrupt, ErrStorage, ErrChanged, ErrServerID, ErrBusy}

// failing returns an env whose operations on files with the given suffix fail.
func failing(op, suffix string, errno syscall.Errno) env {
	e := systemEnv()
	fail := func(name, path string) error {
		if name == op && strings.HasSuffix(path, suffix) {
			return &fs.PathError{Op: name, Path: path, Err: errno}
		}
		return nil
	}
	e.mkdirAll = func(path string, perm fs.FileMode) error {
		if err := fail("mkdir", path); err != nil {
			return err
		}
		return os.MkdirAll(path, perm)
	}
	e.open = func(path string, flag int, perm fs.FileMode) (*os.File, error) {
		if err := fail("open", path); err != nil {
			return nil, err
		}
		return os.OpenFile(path, flag, perm)
	}
	e.write = func(f *os.File, b []byte) (int, error) {
		if err := fail("write", f.Name()); err != nil {
			n, _ := f.Write(b[:len(b)/2]) // as a full disk does
			return n, err
		}
		return f.Write(b)
	}
	e.sync = func(f *os.File) error {
		if err := fail("sync", f.Name()); err != nil {
			return err
		}
		return f.Sync()
	}
	e.rename = func(from, to string) error {
		if err := fail("rename", from); err != nil {
			return err
		}
		return os.Rename(from, to)
	}
	return e
}

// TestErrors: every fault has its own sentinel, and its text names the path
// and says what to do.
func TestErrors(t *testing.T) {
	root := func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("only root can give files away")
		}
	}
	tests := []struct {
		name string
		env  env
		// spoil prepares dir; fresh tests begin without one.
		fresh bool
		spoil func(t *testing.T, dir string) error
		want  error
		text  []string
	}{
		{
			name: "parent not writable", env: failing("mkdir", "", syscall.EACCES), fresh: true,
			want: ErrDirectory, text: []string{"does not exist", "install -d -m 0700", "--state-dir"},
		},
		{name: "parent is a file", fresh: true, spoil: func(_ *testing.T, dir string) error {
			return os.WriteFile(filepath.Dir(dir), nil, 0o600)
		}, want: ErrDirectory, text: []string{"not a directory"}},
		{name: "directory is a file", fresh: true, spoil: func(_ *testing.T, dir string) error {
			return errors.Join(os.MkdirAll(filepath.Dir(dir), 0o700), os.WriteFile(dir, nil, 0o600))
		}, want: ErrDirectory, text: []string{"is not a directory", "--state-dir"}},
		{name: "dangling link", fresh: true, spoil: func(_ *testing.T, dir string) error {
			return errors.Join(os.MkdirAll(filepath.Dir(dir), 0o700), os.Symlink("/nonexistent/holdfast", dir))
		}, want: ErrDirectory, text: []string{"cannot be made"}},
		{
			name: "directory not readable", env: failing("open", "/test", syscall.EACCES),
			want: ErrPermission, text: []string{"no permission", "chown"},
		},
		{
			name: "file not readable", env: failing("open", keysName, syscall.EACCES),
			want: ErrPermission, text: []string{"no permission", keysName},
		},
		{
			name: "directory mode", spoil: func(_ *testing.T, dir string) error { return os.Chmod(dir, 0o750) },
			want: ErrMode, text: []string{"mode 0750", "chmod 0700"},
		},
		{
			name: "file mode", spoil: func(_ *testing.T, dir string) error { return os.Chmod(filepath.Join(dir, keysName), 0o604) },
			want: ErrMode, text: []string{"mode 0604", "chmod 0600", keysName},
		},
		{
			name: "ledger mode", spoil: func(_ *testing.T, dir string) error { return os.Chmod(filepath.Join(dir, ledgerName), 0o660) },
			want: ErrMode, text: []string{"mode 0660", "chmod 0600", ledgerName},
		},
		{
			name: "directory owner", spoil: func(t *testing.T, dir string) error { root(t); return os.Chown(dir, 65534, -1) },
			want: ErrOwner, text: []string{"belongs to user 65534", "chown"},
		},
		{name: "file owner", spoil: func(t *testing.T, dir string) error {
			root(t)
			return os.Chown(filepath.Join(dir, keysName), 65534, -1)
		}, want: ErrOwner, text: []string{"belongs to user 65534", "chown", keysName}},
		{name: "ledger owner", spoil: func(t *testing.T, dir string) error {
			root(t)
			return os.Chown(filepath.Join(dir, ledgerName), 65534, -1)
		}, want: ErrOwner, text: []string{"belongs to user 65534", ledgerName}},
		{name: "file is a link", spoil: func(_ *testing.T, dir string) error {
			p := filepath.Join(dir, keysName)
			return errors.Join(os.Rename(p, p+".real"), os.Symlink(p+".real", p))
		}, want: ErrCorrupt, text: []string{"symbolic link", keysName}},
		{name: "ledger is a link", spoil: func(_ *testing.T, dir string) error {
			p := filepath.Join(dir, ledgerName)
			return errors.Join(os.Rename(p, p+".real"), os.Symlink(p+".real", p))
		}, want: ErrCorrupt, text: []string{"symbolic link", ledgerName}},
		{name: "file is a fifo", spoil: func(_ *testing.T, dir string) error {
			p := filepath.Join(dir, keysName)
			return errors.Join(os.Remove(p), syscall.Mkfifo(p, 0o600))
		}, want: ErrCorrupt, text: []string{"not a regular file"}},
		{
			name: "empty file", spoil: func(_ *testing.T, dir string) error { return os.Truncate(filepath.Join(dir, keysName), 0) },
			want: ErrCorrupt, text: []string{"backup", keysName},
		},
		{
			name: "truncated file", spoil: func(_ *testing.T, dir string) error { return os.Truncate(filepath.Join(dir, keysName), 200) },
			want: ErrCorrupt, text: []string{"backup", keysName},
		},
		{
			name: "huge file", spoil: func(_ *testing.T, dir string) error { return os.Truncate(filepath.Join(dir, keysName), 1<<30) },
			want: ErrCorrupt, text: []string{"longer"},
		},
		{
			name: "read-only at creation", env: failing("mkdir", "", syscall.EROFS), fresh: true,
			want: ErrStorage, text: []string{"read-only", "remount"},
		},
		{
			name: "read-only later", env: failing("open", ".lock", syscall.EROFS),
			want: ErrStorage, text: []string{"read-only", "remount"},
		},
		{
			name: "full at creation", env: failing("write", ".tmp", syscall.ENOSPC), fresh: true,
			want: ErrStorage, text: []string{"full", "nothing was changed"},
		},
		{
			name: "full at sync", env: failing("sync", ".tmp", syscall.EDQUOT), fresh: true,
			want: ErrStorage, text: []string{"quota", "nothing was changed"},
		},
	}
	texts := map[error]string{}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := newDir(t)
			if !tt.fresh {
				mustOpen(t, dir, Options{})
			}
			if tt.spoil != nil {
				if err := tt.spoil(t, dir); err != nil {
					t.Fatal(err)
				}
			}
			if tt.env.open == nil {
				tt.env = systemEnv()
			}
			s, err := open(dir, Options{}, tt.env)
			if err == nil || s != nil {
				t.Fatalf("open = %v, nil; want an error", s)
			}
			for _, sentinel := range sentinels {
				if errors.Is(err, sentinel) != errors.Is(tt.want, sentinel) {
					t.Errorf("error %q: is %q: %v", err, sentinel, errors.Is(err, sentinel))
				}
			}
			for _, part := range append(tt.text, filepath.Base(filepath.Dir(dir))) {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q does not mention %q", err, part)
				}
			}
			texts[tt.want] = tt.want.Error()
		})
	}
	distinct := map[string]bool{}
	for _, text := range texts {
		distinct[text] = true
	}
	if len(distinct) != len(texts) || len(texts) < 6 {
		t.Errorf("%d distinct texts of %d faults", len(distinct), len(texts))
	}
}

// TestFailedRotationChangesNothing, neither in memory nor on disk, and leaves
// no half-written file.
func TestFailedRotationChangesNothing(t *testing.T) {
	for _, fault := range []struct {
		op, suffix string
		errno      syscall.Errno
	}{
		{"open", ".tmp", syscall.EROFS},
		{"write", ".tmp", syscall.ENOSPC},
		{"sync", ".tmp", syscall.EIO},
		{"rename", ".tmp", syscall.EACCES},
		{"open", ".lock", syscall.EACCES},
	} {
		t.Run(fault.op+fault.suffix, func(t *testing.T) {
			dir := newDir(t)
			s := mustOpen(t, dir, Options{})
			before := s.Keys()
			s.env = failing(fault.op, fault.suffix, fault.errno)
			now := time.Now().Add(30 * time.Hour)
			for name, change := range map[string]func() error{
				"RotateTickets": func() error { _, err := s.RotateTickets(now); return err },
				"Rotate":        func() error { return s.Rotate(now) },
				"ReplaceCID":    s.ReplaceCID,
			} {
				if err := change(); !errors.Is(err, fault.errno) {
					t.Errorf("%s: error %v, want %v", name, err, fault.errno)
				}
			}
			if !reflect.DeepEqual(s.Keys(), before) {
				t.Error("the keys in memory changed")
			}
			if again := mustOpen(t, dir, Options{}); !reflect.DeepEqual(again.Keys(), before) {
				t.Error("the keys on disk changed")
			}
			if _, err := os.Lstat(filepath.Join(dir, keysName+".tmp")); !errors.Is(err, fs.ErrNotExist) {
				t.Error("the temporary file is left")
			}
			s.env = systemEnv()
			if changed, err := s.RotateTickets(now); err != nil || !changed {
				t.Errorf("RotateTickets after the repair = %v, %v", changed, err)
			}
		})
	}
}

// TestStoppedAnywhere ends Open of a new directory, of a copy and of one that
// lost its ledger before each operation on a file, as a crash would. The next
// Open succeeds, and then nothing changes any more.
func TestStoppedAnywhere(t *testing.T) {
	type died struct{}
	setups := map[string]func(t *testing.T, dir string){
		"new": func(*testing.T, string) {},
		"copy": func(t *testing.T, dir string) {
			from := newDir(t)
			mustOpen(t, from, Options{})
			copyFile(t, from, dir)
		},
		"lost ledger": func(t *testing.T, dir string) {
			mustOpen(t, dir, Options{})
			if err := os.Remove(filepath.Join(dir, ledgerName)); err != nil {
				t.Fatal(err)
			}
		},
	}
	for name, setup := range setups {
		t.Run(name, func(t *testing.T) {
			for stop := 1; ; stop++ {
				dir := newDir(t)
				setup(t, dir)
				var lost []byte // the key whose ledger is lost
				if name == "lost ledger" {
					c, _ := decodeContent(readKeys(t, dir))
					lost = c.cid
				}
				completed := func() bool {
					defer func() {
						if p := recover(); p != nil && p != (died{}) {
							panic(p)
						}
					}()
					_, err := open(dir, Options{}, stopping(stop, died{}))
					if err != nil {
						t.Fatalf("stop %d: %v", stop, err)
					}
					return true
				}()
				s := mustOpen(t, dir, Options{})
				k := s.Keys()
				mustLease(t, s, 1)
				if lost != nil && bytes.Equal(k.CID, lost) {
					t.Fatalf("stop %d: the key without a ledger is used again", stop)
				}
				if again := mustOpen(t, dir, Options{}); !reflect.DeepEqual(again.Keys(), k) || len(again.Findings()) != 0 {
					t.Fatalf("stop %d: the start after next differs: %q", stop, again.Findings())
				}
				if completed {
					if stop < 5 {
						t.Errorf("only %d operations were stopped", stop-1)
					}
					return
				}
			}
		})
	}
}

// stopping returns an env that panics instead of operation number n.
func stopping(n int, with any) env {
	e, system := systemEnv(), systemEnv()
	tick := func() {
		if n--; n == 0 {
			panic(with)
		}
	}
	e.mkdirAll = func(path string, perm fs.FileMode) error { tick(); return system.mkdirAll(path, perm) }
	e.open = func(path string, flag int, perm fs.FileMode) (*os.File, error) {
		tick()
		return system.open(path, flag, perm)
	}
	e.write = func(f *os.File, b []byte) (int, error) { tick(); return system.write(f, b) }
	e.sync = func(f *os.File) error { tick(); return system.sync(f) }
	e.rename = func(from, to string) error { tick(); return system.rename(from, to) }
	return e
}

func readKeys(t *testing.T, dir string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, keysName))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func FuzzDecodeContent(f *testing.F) {
	c := newContent(start)
	c.serverID, c.instance = []byte{1, 2, 3}, 7
	b, err := c.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte("{}"))
	f.Add([]byte(`{"format":1,"tickets":[{}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, fault := decodeContent(b)
		if fault != "" {
			return
		}
		again, err := c.encode()
		if err != nil {
			return // a year that has no RFC 3339 form
		}
		d, fault := decodeContent(again)
		if fault != "" || !bytes.Equal(d.resetKey(), c.resetKey()) || !bytes.Equal(d.cid, c.cid) || len(d.tickets) != len(c.tickets) {
			t.Fatalf("what was read from %q is written as %q: %s", b, again, fault)
		}
	})
}
