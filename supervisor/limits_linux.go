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

// processMemory is about what the supervisor and a few idle workers need
// besides the table, in bytes.
const processMemory = 16 << 20

// checkMemory refuses a table that would get the service killed: its pages
// count against the memory limit of the control group once they are used.
func checkMemory(e *env, g shm.Geometry) error {
	limit, source := e.memory()
	need := int64(g.TableEntries)*tableEntryBytes + processMemory
	if limit == 0 || need <= limit {
		return nil
	}
	return fmt.Errorf("%w: the memory limit is %d bytes (%s) and a table of %d entries needs %d: raise the limit or lower table.entries",
		ErrLimit, limit, source, g.TableEntries, need)
}

const tableEntryBytes = 32

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
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err = f.Write(content); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE|unix.F_SEAL_SEAL)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("seal %s: %w", name, err)
	}
	return f, nil
}
