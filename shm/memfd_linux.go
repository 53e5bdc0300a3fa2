package shm

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"

	"github.com/edsrzf/mmap-go"
	"golang.org/x/sys/unix"
)

// seals keep the size of the file as it is for ever, so that no process can
// make an access of another one fault.
const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// Create makes a new segment in anonymous memory, for the supervisor, with a
// random secret. The file has no name, mode 0600, is close-on-exec and sealed
// against shrinking and growing.
func Create(g Geometry) (_ *Segment, err error) {
	if err := g.Validate(); err != nil {
		return nil, fmt.Errorf("create segment: %w", err)
	}
	f, err := memfd("holdfast-segment")
	if err != nil {
		return nil, fmt.Errorf("create segment: %w", err)
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	if err := f.Chmod(0o600); err != nil {
		return nil, fmt.Errorf("create segment: %w", err)
	}
	if err := f.Truncate(g.Size()); err != nil {
		return nil, fmt.Errorf("create segment of %d bytes: %w", g.Size(), err)
	}
	if err := control(f, func(fd uintptr) error {
		_, err := unix.FcntlInt(fd, unix.F_ADD_SEALS, seals)
		return err
	}); err != nil {
		return nil, fmt.Errorf("seal segment: %w", err)
	}
	var secret [16]byte
	if _, err := rand.Read(secret[:]); err != nil {
		return nil, fmt.Errorf("create segment: %w", err)
	}
	m, err := mmap.MapRegion(f, int(g.Size()), mmap.RDWR, 0, 0)
	if err != nil {
		return nil, fmt.Errorf("map segment of %d bytes: %w", g.Size(), err)
	}
	defer func() {
		if err != nil {
			_ = m.Unmap()
		}
	}()
	if err := Format(m, g, secret); err != nil {
		return nil, err
	}
	s, err := Open(m)
	if err != nil {
		return nil, err
	}
	s.file, s.mapping = f, m
	return s, nil
}

// Attach maps the segment in f, which another process created. On success the
// Segment owns f; on failure f is untouched and still the caller's. Nothing is
// written. Errors: [ErrNotSegment], [ErrABIVersion], [ErrGeometry], wrapped.
func Attach(f *os.File) (*Segment, error) {
	h, err := inspect(f)
	if err != nil {
		return nil, fmt.Errorf("attach segment: %w", err)
	}
	m, err := mmap.MapRegion(f, int(h.geometry.Size()), mmap.RDWR, 0, 0)
	if err != nil {
		return nil, fmt.Errorf("attach segment: map %d bytes: %w", h.geometry.Size(), err)
	}
	s, err := newSegment(m, h)
	if err != nil {
		_ = m.Unmap()
		return nil, err
	}
	s.file, s.mapping = f, m
	return s, nil
}

// inspect reads and checks the header without mapping anything: before the
// seals are known to be there, a mapping could lose its pages.
func inspect(f *os.File) (header, error) {
	var have int
	if err := control(f, func(fd uintptr) (err error) {
		have, err = unix.FcntlInt(fd, unix.F_GET_SEALS, 0)
		return err
	}); err != nil {
		return header{}, fmt.Errorf("%w: not a memfd: %w", ErrNotSegment, err)
	}
	if have&seals != seals {
		return header{}, fmt.Errorf("%w: its size is not sealed", ErrNotSegment)
	}
	st, err := f.Stat()
	if err != nil {
		return header{}, err
	}
	page := make([]byte, headerBytes)
	if n, err := f.ReadAt(page, 0); err != nil {
		return header{}, fmt.Errorf("%w: %d bytes of header: %w", ErrNotSegment, n, err)
	}
	return readHeader(page, st.Size())
}

// PunchQueue gives the memory of slot's packet queue back to the system; the
// region reads as zeros afterwards. On plain bytes it only clears.
//
// Preconditions: slot is in the geometry, and neither a producer nor a consumer
// uses its queue.
func (s *Segment) PunchQueue(slot SlotID) error {
	q := s.Queue(slot)
	if s.file == nil {
		clear(q)
		return nil
	}
	off := int64(s.at.queues + int(slot)*s.at.queue)
	if err := control(s.file, func(fd uintptr) error {
		return unix.Fallocate(int(fd), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, int64(len(q)))
	}); err != nil {
		return fmt.Errorf("punch queue of slot %d: %w", slot, err)
	}
	return nil
}

// memfd asks for a file that can never be executed, and does without that on
// kernels before 6.3.
func memfd(name string) (*os.File, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate(name, flags)
	}
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// control runs fn on the descriptor of f, which cannot be closed meanwhile.
func control(f *os.File, fn func(fd uintptr) error) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var ferr error
	if err := c.Control(func(fd uintptr) { ferr = fn(fd) }); err != nil {
		return err
	}
	return ferr
}
