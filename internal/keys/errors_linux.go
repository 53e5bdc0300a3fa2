package keys

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/holdfast-quic/holdfast/connid"
)

// What can be wrong with a state directory. The error that wraps one of these
// names the path and says what to do.
var (
	// ErrDirectory: the directory does not exist and cannot be made, or its
	// path leads to something else.
	ErrDirectory = errors.New("state directory cannot be used")
	// ErrPermission: the directory or a file in it exists, but this process
	// may not read or write it.
	ErrPermission = errors.New("no permission")
	// ErrMode: others than the owner may read or write a secret.
	ErrMode = errors.New("wrong mode")
	// ErrOwner: another user owns the directory or a file in it.
	ErrOwner = errors.New("wrong owner")
	// ErrCorrupt: a file does not hold what it should.
	ErrCorrupt = errors.New("corrupt content")
	// ErrStorage: the file system is read-only or full.
	ErrStorage = errors.New("cannot write")
	// ErrChanged: keys.json was replaced since it was read. Opening the
	// directory again takes the new content.
	ErrChanged = errors.New("keys.json was changed by another process")
	// ErrServerID: the server ID given by the caller cannot be used.
	ErrServerID = errors.New("invalid server ID")
	// ErrBusy: another process keeps the directory locked.
	ErrBusy = errors.New("locked by another process")
)

// explain adds to what the system says about path what to do about it.
func explain(path string, err error) error {
	switch {
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w %s, its file system is mounted read-only: "+
			"remount it writable, or choose another place with --state-dir: %w", ErrStorage, path, err)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w %s, its file system or the user's quota is full: "+
			"free some space (a few KiB are enough), nothing was changed: %w", ErrStorage, path, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w for user %d to use %s: "+
			"run as the user that owns it, or hand it over with chown: %w", ErrPermission, os.Geteuid(), path, err)
	case errors.Is(err, syscall.ELOOP):
		return fmt.Errorf("%w: %s is a symbolic link, which is not followed: "+
			"put the file itself there: %w", ErrCorrupt, path, err)
	}
	return fmt.Errorf("use %s: %w", path, err)
}

// explainMakeDir is explain for a directory that is not there.
func explainMakeDir(dir string, err error) error {
	if errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return explain(dir, err)
	}
	return fmt.Errorf("%w: %s does not exist and cannot be made by user %d: "+
		"make it with install -d -m 0700 -o USER %s, or choose another with --state-dir: %w",
		ErrDirectory, dir, os.Geteuid(), dir, err)
}

// explainLedger is explain for what package connid says about the ledger.
func explainLedger(path string, err error) error {
	switch {
	case errors.Is(err, connid.ErrLedger), errors.Is(err, connid.ErrLedgerFull):
		return err // the caller's to deal with, not the operator's
	case errors.Is(err, connid.ErrLedgerBusy):
		return fmt.Errorf("%s is %w: %w", path, ErrBusy, err)
	}
	return explain(path, err)
}

func errMode(path string, got, want fs.FileMode) error {
	return fmt.Errorf("%w: %s has mode %04o, but only its owner may have access: "+
		"run chmod %04o %s, and if others had access to this host, replace the keys", ErrMode, path, got, want, path)
}

func errOwner(path string, got, want int) error {
	return fmt.Errorf("%w: %s belongs to user %d, not to user %d that this process runs as: "+
		"run chown %d %s, or run as user %d", ErrOwner, path, got, want, want, path, got)
}

func errCorrupt(path, fault string) error {
	return fmt.Errorf("%w: %s: %s: restore the file from a backup, "+
		"or remove it to have new keys made (clients then start without tickets and tokens)", ErrCorrupt, path, fault)
}
