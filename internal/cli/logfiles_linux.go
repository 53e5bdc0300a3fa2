package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/holdfast-quic/holdfast/config"
)

// logMode is that of a new log file.
const logMode = 0o640

// prepareLogs sees to it that the workers can write the log files when they
// run as another user.
func prepareLogs(c *config.Config) error {
	a := c.Account()
	if a == nil || int(a.UID) == os.Geteuid() {
		return nil
	}
	if _, err := workerAccount(c); err != nil {
		return err // it could not give anything away
	}
	for _, path := range []string{c.Log.Path, c.AccessLog.Path} {
		if path == "" || path == config.LogStderr || path == config.LogOff {
			continue
		}
		if err := giveLog(path, a); err != nil {
			return fmt.Errorf("log file for the user of the workers: %w", err)
		}
	}
	return nil
}

// giveLog makes a log file the account's. One that exists is given away only
// if it is a regular file of this process's own user, with no second name: the
// directory may belong to somebody who would put anything else in its place.
func giveLog(path string, a *config.Account) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, logMode)
	if errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.ENXIO) || errors.Is(err, fs.ErrPermission) {
		return nil // a link or a device: whether a worker may write there, it will tell
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() || st.Nlink != 1 || int(st.Uid) != os.Geteuid() {
		return nil
	}
	return f.Chown(int(a.UID), int(a.GID))
}
