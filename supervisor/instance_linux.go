package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	lockName  = "lock"
	pidName   = "holdfast.pid"
	adminName = "admin.sock"

	// maxSocketPath is what a Unix socket address holds.
	maxSocketPath = 107
)

// instance is the right to be the supervisor of a runtime directory: an open
// file description with a lock on it, which ends with the process however it
// ends.
type instance struct {
	dir     string
	pid     int
	lock    *os.File
	pidFile string // the further one, as written; "" for none
	keep    bool   // workers live that the next supervisor will look for
}

// takeInstance makes the directory and takes the lock, before anything else in
// it is touched. ErrRunning names the process that has it.
//
// With a lock that this process has had all along, it is kept.
func takeInstance(dir string, pid int, lock *os.File) (*instance, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if path := filepath.Join(dir, adminName); len(path) > maxSocketPath {
		return nil, fmt.Errorf("%w: the runtime directory's path is too long: %s has %d bytes of at most %d", ErrUsage, path, len(path), maxSocketPath)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the runtime directory: %w", err)
	}
	if err := checkDir(dir); err != nil {
		return nil, err
	}
	if lock != nil {
		return &instance{dir: dir, pid: pid, lock: lock}, nil
	}
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the instance lock: %w", describeOwner(path, err))
	}
	if err := flock(f); err != nil {
		defer f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: process %s holds %s", ErrRunning, lockHolder(f), path)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	i := &instance{dir: dir, pid: pid, lock: f}
	if err := i.sign(); err != nil {
		f.Close()
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	i.sweep()
	return i, nil
}

// checkDir refuses a directory that others can write to or that is not ours.
func checkDir(dir string) error {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return fmt.Errorf("runtime directory: %w", &os.PathError{Op: "stat", Path: dir, Err: err})
	}
	if uid := os.Geteuid(); int(st.Uid) != uid && uid != 0 {
		return fmt.Errorf("runtime directory %s belongs to user %d, not to user %d: remove it or choose another one", dir, st.Uid, uid)
	}
	if st.Mode&0o077 != 0 {
		if err := os.Chmod(dir, 0o700); err != nil {
			return fmt.Errorf("runtime directory: %w", err)
		}
	}
	return nil
}

// describeOwner adds who owns a file that can't be opened.
func describeOwner(path string, err error) error {
	var st unix.Stat_t
	if !errors.Is(err, fs.ErrPermission) || unix.Stat(path, &st) != nil {
		return err
	}
	return fmt.Errorf("%w: it belongs to user %d; remove it or use another runtime directory", err, st.Uid)
}

func flock(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var lockErr error
	if err := raw.Control(func(fd uintptr) { lockErr = unix.Flock(int(fd), unix.LOCK_EX|unix.LOCK_NB) }); err != nil {
		return err
	}
	return lockErr
}

func lockHolder(f *os.File) string {
	text := make([]byte, 32)
	n, _ := f.ReadAt(text, 0)
	if pid := strings.TrimSpace(string(text[:n])); pid != "" {
		return pid
	}
	return "(unknown)"
}

// sign writes the PID into the lock file.
func (i *instance) sign() error {
	if err := i.lock.Truncate(0); err != nil {
		return err
	}
	_, err := i.lock.WriteAt([]byte(strconv.Itoa(i.pid)+"\n"), 0)
	return err
}

// sweep removes what a killed supervisor left and its successor has no use for.
// Holding the lock proves that nobody else has.
func (i *instance) sweep() {
	for _, name := range []string{adminName, pidName + ".tmp", stateName + ".tmp"} {
		os.Remove(filepath.Join(i.dir, name))
	}
}

func (i *instance) adminPath() string { return filepath.Join(i.dir, adminName) }

// writePID writes the PID files: the one of the runtime directory, and the
// further one if there is one. Each is written beside its place and renamed,
// so nobody ever reads an empty one. A further one of an earlier configuration
// is removed when it is not the same file by another name.
func (i *instance) writePID(further string) error {
	if err := writeRenamed(filepath.Join(i.dir, pidName), i.pid); err != nil {
		return fmt.Errorf("write the PID file: %w", err)
	}
	old := i.pidFile
	if further != "" {
		if err := writeRenamed(further, i.pid); err != nil {
			return fmt.Errorf("write the PID file: %w", err)
		}
	}
	i.pidFile = further
	if old != "" && old != further && !sameFile(old, further) {
		os.Remove(old)
	}
	return nil
}

func writeRenamed(path string, pid int) error {
	temp := path + ".tmp"
	if err := os.WriteFile(temp, []byte(strconv.Itoa(pid)+"\n"), 0o644); err != nil {
		return err
	}
	if err := os.Rename(temp, path); err != nil {
		os.Remove(temp)
		return err
	}
	return nil
}

func sameFile(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}

// release removes the files and gives the lock back. The lock file itself
// stays: removing it would let two processes lock two files of one name.
func (i *instance) release() {
	os.Remove(i.adminPath())
	os.Remove(filepath.Join(i.dir, pidName))
	if !i.keep {
		os.Remove(filepath.Join(i.dir, stateName))
	}
	if i.pidFile != "" {
		os.Remove(i.pidFile)
	}
	i.lock.Close()
}
