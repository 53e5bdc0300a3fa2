package supervisor

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/holdfast-quic/holdfast/shm"
)

// openFiles returns how many descriptors this process has, and its limit.
func openFiles() (used, limit int, err error) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 0, 0, os.NewSyscallError("getrlimit", err)
	}
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return 0, 0, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return 0, 0, err
	}
	return len(names) - 1, int(min(r.Cur, 1<<30)), nil // without the directory itself
}

// memoryLimit returns the tightest memory limit of the control groups that
// this process is in, and the file that says so. 0 means that there is none.
func memoryLimit() (limit int64, source string) {
	f, err := os.Open("/proc/self/cgroup")
	if err != nil {
		return 0, ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// hierarchy:controllers:path
		parts := strings.SplitN(lines.Text(), ":", 3)
		if len(parts) != 3 {
			continue
		}
		root, name := "/sys/fs/cgroup", "memory.max"
		switch {
		case strings.Contains(","+parts[1]+",", ",memory,"):
			root, name = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
		case parts[1] != "":
			continue
		}
		for dir := filepath.Clean("/" + parts[2]); ; dir = filepath.Dir(dir) {
			path := filepath.Join(root, dir, name)
			if n, ok := readLimit(path); ok && (limit == 0 || n < limit) {
				limit, source = n, path
			}
			if dir == "/" {
				break
			}
		}
	}
	return limit, source
}

func readLimit(path string) (int64, bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	const unlimited = 1 << 60 // version 1 writes a huge number for none
	return n, err == nil && n > 0 && n < unlimited
}

// What a process of this program uses in bytes: heap, stacks, sockets and page
// tables together. Idle, 3 MiB are measured for the supervisor and 3.5 MiB for a
// worker; under a light load with reloads, twice as much and more, because the
// garbage collector lets a heap double. A test runs with just that much.
const (
	supervisorMemory = 12 << 20
	workerMemory     = 8 << 20
	tableEntryBytes  = 32
)

// memoryNeed is what the service uses with so many generations, their clients
// apart: a table whose entries are all in use, which they share, and processes.
func memoryNeed(spec *Spec, g shm.Geometry, generations int) int64 {
	return int64(g.TableEntries)*tableEntryBytes + supervisorMemory + int64(generations*spec.Workers)*workerMemory
}

// checkMemory refuses what would get the service killed: at a reload two
// generations are there, and their pages count against the memory limit of the
// control group.
func checkMemory(e *env, spec *Spec, g shm.Geometry) error {
	limit, source := e.memory()
	need := memoryNeed(spec, g, 2)
	if limit == 0 || need <= limit {
		return nil
	}
	return fmt.Errorf("%w: the memory limit is %d bytes (%s), and at least %d are needed for a table of %d entries and %d workers, "+
		"those of the old and of the new generation at a reload: raise the limit, or lower table.entries or workers",
		ErrLimit, limit, source, need, g.TableEntries, 2*spec.Workers)
}

// hintMemory says that as many generations as may drain at once do not fit.
func (s *Supervisor) hintMemory(spec *Spec) {
	limit, source := s.env.memory()
	if need := memoryNeed(spec, s.seg.Geometry(), spec.Drain.MaxGenerations+1); limit != 0 && need > limit {
		s.log.Warn("memory may run out when as many generations drain as are allowed",
			zap.Int64("limit", limit), zap.String("source", source), zap.Int64("needed", need),
			zap.String("hint", "lower drain.max_generations or drain.timeout, or raise the limit"))
	}
}

// segmentHint says what an operator can do about an error of making the
// segment.
func segmentHint(err error) string {
	for _, h := range []struct {
		errno syscall.Errno
		hint  string
	}{
		{syscall.ENOSYS, "this kernel has no memfd_create; Linux 3.17 or later is needed"},
		{syscall.EPERM, "memfd_create is forbidden, probably by a seccomp filter of the container; allow it"},
		{syscall.EACCES, "the mapping is forbidden by a security policy; see the audit log"},
		{syscall.EMFILE, "this process has too many open files; raise LimitNOFILE or ulimit -n"},
		{syscall.ENFILE, "the system has too many open files; raise fs.file-max"},
		{syscall.ENOSPC, "the kernel has no memory for it; lower table.entries, queue.lanes or queue.lane_size"},
		{syscall.ENOMEM, "there is too little memory or address space for it; lower table.entries, queue.lanes or queue.lane_size, or raise ulimit -v"},
		{syscall.EINVAL, "the kernel refuses its size; lower table.entries, queue.lanes or queue.lane_size"},
		{syscall.EFBIG, "it is larger than the file size limit; raise ulimit -f"},
	} {
		if errors.Is(err, h.errno) {
			return h.hint
		}
	}
	return ""
}

// sealedFile returns content as a file that nobody can change any more.
func sealedFile(name string, content []byte) (*os.File, error) {
	f, err := memoryFile(name)
	if err != nil {
		return nil, err
	}
	if _, err = f.Write(content); err == nil {
		var fd int
		if fd, err = descriptor(f); err == nil {
			_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE|unix.F_SEAL_SEAL)
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("seal %s: %w", name, err)
	}
	return f, nil
}

// memoryFile makes an empty file in anonymous memory.
func memoryFile(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
