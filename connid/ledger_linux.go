package connid

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

var (
	// ErrLedger is returned when it is not known which nonces of a key are
	// used: the ledger's file is missing or corrupt, or went back in time.
	// The key must not be used again; make a new one and [CreateLedger] for it.
	ErrLedger = errors.New("connid: nonce ledger lost, its key must be replaced")
	// ErrLedgerFile is returned when the ledger's path holds something that a
	// ledger must not be: a symbolic link, no regular file, another user's
	// file, or one that others may access.
	ErrLedgerFile = errors.New("connid: nonce ledger is not a private regular file")
	// ErrLedgerFull is returned when fewer nonces are left under a key than
	// were asked for.
	ErrLedgerFull = errors.New("connid: nonce ledger has too few nonces left")
	// ErrLedgerBusy is returned when another process keeps the ledger locked.
	ErrLedgerBusy = errors.New("connid: nonce ledger is locked by another process")
)

const (
	lockTimeout = 5 * time.Second
	lockPoll    = 5 * time.Millisecond
	maxFloor    = 3 << 30 // seconds since 1970; leaves a quarter of the nonces
)

// Steps of a write, in order: the places at which a process may die.
const (
	stepLocked  = "locked"
	stepCreated = "created"
	stepWritten = "written"
	stepSynced  = "synced"
	stepRenamed = "renamed"
	stepDurable = "durable"
)

// Ledger hands out the nonces of one key in ranges and remembers in a file how
// far it got. A range is on stable storage before Lease returns it, so no
// nonce is handed out twice, whenever the process or the machine stops; what
// is left of a range then is lost.
//
// Any number of goroutines and processes may lease from one file.
//
// As a second line of defense against a file that is restored from a backup or
// a snapshot, no range begins below the time of the lease: nonces start at
// the seconds since 1970 times 2^32. This needs a clock that is roughly right
// at one of the two times only.
type Ledger struct {
	path string

	mu   sync.Mutex
	last record // as last read or written

	now  func() time.Time
	step func(name string) // test hook, called after each step of a write
}

// CreateLedger starts a ledger for a key that was never used, in place of
// whatever is at path. The key itself is not stored; nil stands for plain
// connection IDs.
func CreateLedger(path string, key []byte) (*Ledger, error) {
	l := newLedger(path)
	l.last = record{key: fingerprintOf(key)}
	err := l.locked(func() error { return l.write(l.last) })
	if err != nil {
		return nil, fmt.Errorf("create nonce ledger %s: %w", path, err)
	}
	return l, nil
}

// OpenLedger opens the ledger at path, which must be a regular file of mode
// 0600 that belongs to the user. It returns an error that wraps [ErrLedger]
// when there is none or it is corrupt. Ask [Ledger.BoundTo] before leasing.
func OpenLedger(path string) (*Ledger, error) {
	l := newLedger(path)
	r, err := l.read()
	if err != nil {
		return nil, fmt.Errorf("open nonce ledger %s: %w", path, err)
	}
	l.last = r
	return l, nil
}

func newLedger(path string) *Ledger {
	return &Ledger{path: path, now: time.Now, step: func(string) {}}
}

// BoundTo reports whether the ledger was created for key.
func (l *Ledger) BoundTo(key []byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last.key == fingerprintOf(key)
}

// Lease hands out the next n nonces, once and for ever. It writes and syncs
// the ledger's file, so it takes as long as the disk does.
//
// An error means that nothing was handed out. After [ErrLedger] the key is
// lost; after any other the lease may be tried again.
func (l *Ledger) Lease(n uint64) (Range, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var leased Range
	err := l.locked(func() error {
		r, err := l.read()
		if err != nil {
			return err
		}
		if r.key != l.last.key {
			return fmt.Errorf("%w: the file now belongs to another key", ErrLedger)
		}
		if r.next < l.last.next {
			return fmt.Errorf("%w: the file is older than what was read before", ErrLedger)
		}
		from := max(r.next, floor(l.now()))
		if n > math.MaxUint64-from {
			return ErrLedgerFull
		}
		r.next = from + n
		if err := l.write(r); err != nil {
			return err
		}
		l.last = r
		leased = Range{From: from, To: r.next}
		return nil
	})
	if err != nil {
		return Range{}, fmt.Errorf("lease nonces of %s: %w", l.path, err)
	}
	return leased, nil
}

// floor returns the lowest nonce that may be handed out at t. A clock that
// stands before 1970 or after 2072 is taken to be wrong and has no say, so that
// it cannot use up all nonces either.
func floor(t time.Time) uint64 {
	if s := t.Unix(); s > 0 && s < maxFloor {
		return uint64(s) << 32
	}
	return 0
}

// locked runs f while no other process is in a locked call for this ledger.
func (l *Ledger) locked(f func() error) error {
	lock, err := os.OpenFile(l.path+".lock", os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	// Closing also unlocks. The file stays: removing it would let two
	// processes lock two files of the same name.
	defer lock.Close()
	// Not waiting in the kernel bounds the wait for a stopped process.
	for deadline := time.Now().Add(lockTimeout); ; time.Sleep(lockPoll) {
		err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			l.step(stepLocked)
			return f()
		case !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR):
			return &fs.PathError{Op: "flock", Path: lock.Name(), Err: err}
		case time.Now().After(deadline):
			return ErrLedgerBusy
		}
	}
}

func (l *Ledger) read() (record, error) {
	f, err := os.OpenFile(l.path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return record{}, fmt.Errorf("%w: no such file", ErrLedger)
	case errors.Is(err, syscall.ELOOP):
		return record{}, fmt.Errorf("%w: it is a symbolic link", ErrLedgerFile)
	case err != nil:
		return record{}, err
	}
	defer f.Close()
	if err := private(f); err != nil {
		return record{}, err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxRecordLen+1))
	if err != nil {
		return record{}, err
	}
	r, ok := decodeRecord(b)
	if !ok {
		return record{}, fmt.Errorf("%w: the file is corrupt", ErrLedger)
	}
	return r, nil
}

// private refuses what others could have written or can read.
func private(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%w: it is a %v", ErrLedgerFile, info.Mode().Type())
	}
	if perm := info.Mode().Perm(); perm&^0o600 != 0 {
		return fmt.Errorf("%w: its mode is %04o, not 0600", ErrLedgerFile, perm)
	}
	if owner := info.Sys().(*syscall.Stat_t).Uid; int(owner) != os.Geteuid() {
		return fmt.Errorf("%w: it belongs to user %d, not %d", ErrLedgerFile, owner, os.Geteuid())
	}
	return nil
}

// write replaces the file by r and returns once that is on stable storage.
// Preconditions: the ledger is locked.
func (l *Ledger) write(r record) error {
	temp := l.path + ".tmp"
	// Left by a process that died in here.
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := l.writeTemp(temp, r); err != nil {
		// The first error is what matters, and the next write removes again.
		_ = os.Remove(temp)
		return err
	}
	if err := os.Rename(temp, l.path); err != nil {
		_ = os.Remove(temp)
		return err
	}
	l.step(stepRenamed)
	if err := syncDir(filepath.Dir(l.path)); err != nil {
		return err
	}
	l.step(stepDurable)
	return nil
}

func (l *Ledger) writeTemp(temp string, r record) error {
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer f.Close() // for the early returns; a second Close is harmless
	// The umask may have taken bits away.
	if err := f.Chmod(0o600); err != nil {
		return err
	}
	l.step(stepCreated)
	if _, err := f.Write(r.encode()); err != nil {
		return err
	}
	l.step(stepWritten)
	if err := f.Sync(); err != nil {
		return err
	}
	l.step(stepSynced)
	return f.Close()
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
