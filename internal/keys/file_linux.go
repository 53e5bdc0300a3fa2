package keys

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const (
	dirMode     = 0o700
	fileMode    = 0o600
	maxFileSize = 64 << 10
	lockTimeout = 5 * time.Second
	lockPoll    = 5 * time.Millisecond
)

// env is the operating system as this package uses it.
type env struct {
	now      func() time.Time
	euid     func() int
	mkdirAll func(path string, perm fs.FileMode) error
	open     func(name string, flag int, perm fs.FileMode) (*os.File, error)
	write    func(f *os.File, b []byte) (int, error)
	sync     func(f *os.File) error
	rename   func(from, to string) error
}

func systemEnv() env {
	return env{
		now:      time.Now,
		euid:     os.Geteuid,
		mkdirAll: os.MkdirAll,
		open:     os.OpenFile,
		write:    (*os.File).Write,
		sync:     (*os.File).Sync,
		rename:   os.Rename,
	}
}

// openDir makes the state directory if it is missing, refuses one that others
// may enter, and returns its inode number.
//
// A symbolic link to the directory is followed: service managers make such
// links. What counts is the directory that it leads to.
func (e env) openDir(dir string) (inode uint64, err error) {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		if err := e.makeDir(dir); err != nil {
			return 0, explainMakeDir(dir, err)
		}
	}
	d, err := e.open(dir, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if errors.Is(err, syscall.ENOTDIR) {
		return 0, fmt.Errorf("%w: %s is not a directory: move the file away, or choose another directory with --state-dir: %w", ErrDirectory, dir, err)
	}
	if err != nil {
		return 0, explain(dir, err)
	}
	defer d.Close()
	st, err := e.private(d, dirMode)
	if err != nil {
		return 0, err
	}
	return st.Ino, nil
}

func (e env) makeDir(dir string) error {
	if err := e.mkdirAll(dir, dirMode); err != nil {
		return err
	}
	return os.Chmod(dir, dirMode) // the umask may have taken bits away
}

// private refuses a file or directory that is not its owner's alone.
func (e env) private(f *os.File, allowed fs.FileMode) (*syscall.Stat_t, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, explain(f.Name(), err)
	}
	st := info.Sys().(*syscall.Stat_t)
	if int(st.Uid) != e.euid() {
		return nil, errOwner(f.Name(), int(st.Uid), e.euid())
	}
	if perm := info.Mode().Perm(); perm&^allowed != 0 {
		return nil, errMode(f.Name(), perm, allowed)
	}
	return st, nil
}

// read returns the content of a private regular file; an error that wraps
// [fs.ErrNotExist] says that there is none.
func (e env) read(path string) ([]byte, error) {
	f, err := e.open(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, explain(path, err)
	}
	defer f.Close()
	st, err := e.private(f, fileMode)
	if err != nil {
		return nil, err
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return nil, errCorrupt(path, "not a regular file")
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err != nil {
		return nil, explain(path, err)
	}
	if len(b) > maxFileSize {
		return nil, errCorrupt(path, "longer than any file of keys")
	}
	return b, nil
}

// replace writes b to path so that a crash leaves the old file or the new one.
// Preconditions: the directory is locked.
func (e env) replace(path string, b []byte) error {
	temp := path + ".tmp"
	// Left by a process that died in here.
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return explain(temp, err)
	}
	if err := e.writeTemp(temp, b); err != nil {
		os.Remove(temp)
		return explain(path, err)
	}
	if err := e.rename(temp, path); err != nil {
		os.Remove(temp)
		return explain(path, err)
	}
	d, err := e.open(filepath.Dir(path), os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return explain(path, err)
	}
	defer d.Close()
	if err := e.sync(d); err != nil {
		return explain(path, err)
	}
	return nil
}

func (e env) writeTemp(temp string, b []byte) error {
	f, err := e.open(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, fileMode)
	if err != nil {
		return err
	}
	defer f.Close() // for the early returns; a second Close is harmless
	// The umask may have taken bits away.
	if err := f.Chmod(fileMode); err != nil {
		return err
	}
	if _, err := e.write(f, b); err != nil {
		return err
	}
	if err := e.sync(f); err != nil {
		return err
	}
	return f.Close()
}

// locked runs f while no other process is in a locked call for path.
func (e env) locked(path string, f func() error) error {
	lock, err := e.open(path+".lock", os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, fileMode)
	if err != nil {
		return explain(path+".lock", err)
	}
	// Closing also unlocks. The file stays: removing it would let two
	// processes lock two files of the same name.
	defer lock.Close()
	// Not waiting in the kernel bounds the wait for a stopped process.
	for deadline := time.Now().Add(lockTimeout); ; time.Sleep(lockPoll) {
		err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return f()
		case !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR):
			return explain(lock.Name(), err)
		case time.Now().After(deadline):
			return fmt.Errorf("%s is %w", path, ErrBusy)
		}
	}
}
