package supervisor

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

const (
	stateName = "state"
	// stateInterval is the least time between two looks at what has changed.
	// Events come in bursts; what the file does not have yet when the process
	// is killed, its successor finds in the segment and with the workers.
	stateInterval = 20 * time.Millisecond
)

// stateFile is the state document on disk, for the case that this process is
// killed. It belongs to the loop.
type stateFile struct {
	path    string
	content []byte // settled, of the last one written
	looked  time.Time
	timer   *timer
	broken  bool // the last write failed, which was said
}

// keepState writes down what has changed since it was called last. The loop
// calls it when no event waits.
func (s *Supervisor) keepState() {
	f := &s.state
	if f.path == "" || f.timer != nil {
		return
	}
	if wait := stateInterval - time.Since(f.looked); wait > 0 {
		f.timer = s.after(wait, func() { f.timer = nil }) // the end of that event calls again
		return
	}
	f.looked = time.Now()
	d := s.snapshot()
	content, err := d.settled()
	if err == nil && sameDocument(f.content, content) {
		return
	}
	var wire []byte
	if err == nil {
		wire, err = d.encode()
	}
	if err == nil {
		err = writePrivate(f.path, wire)
	}
	if err != nil {
		if !f.broken {
			s.log.Error("write the state file; should this supervisor be killed now, the next one may have to start workers anew", zap.Error(err))
		}
		f.broken = true
		return
	}
	f.content, f.broken = content, false
}

// writePrivate replaces a file, which nobody else may read, as a whole. It
// need not survive a crash of the host, whose processes would not either, so
// nothing is synced.
func writePrivate(path string, content []byte) error {
	temp := path + ".tmp"
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		os.Remove(temp)
	}
	return err
}

// readState returns the document that a supervisor before this one left in the
// directory. An error that wraps fs.ErrNotExist says that there is none.
func readState(dir string) (*document, error) {
	path := filepath.Join(dir, stateName)
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := statFile(f, &st); err != nil {
		return nil, err
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, fmt.Errorf("%s: %w: no regular file", path, errDocument)
	case int(st.Uid) != os.Geteuid():
		return nil, fmt.Errorf("%s: %w: it belongs to user %d", path, errDocument, st.Uid)
	}
	wire, err := io.ReadAll(io.LimitReader(f, maxDocument+1))
	if err != nil {
		return nil, err
	}
	d, err := decodeDocument(wire)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return d, nil
}

func statFile(f *os.File, st *unix.Stat_t) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var statErr error
	if err := raw.Control(func(fd uintptr) { statErr = unix.Fstat(int(fd), st) }); err != nil {
		return err
	}
	return os.NewSyscallError("fstat", statErr)
}
