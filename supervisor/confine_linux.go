package supervisor

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// onOwnThread runs f on a thread that nobody else uses before or after: what
// f does to the rights of the thread ends with it, and is inherited by the
// processes that f starts.
func onOwnThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The main thread does not end, and stands for the process in
			// /proc. It waits here, so the next one is another.
			onOwnThread(f)
			runtime.UnlockOSThread()
			return
		}
		f() // never unlocked: the thread ends with the goroutine
	}()
	<-done
}

// confine takes from the calling thread the ways by which a program that it
// starts could have capabilities or get more rights: no_new_privs, and the
// bounding, inheritable and ambient sets. Without CAP_SETPCAP the bounding set
// stays; then, and when nothing needs them any more, its own capabilities go
// too, because a file's capabilities count under no_new_privs as far as the
// thread has them already.
//
// changes says that the child becomes another user, which takes capabilities,
// and takes them away.
func confine(changes bool) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl PR_SET_NO_NEW_PRIVS: %w", err)
	}
	bounded := true
	for c := uintptr(0); c <= maxCapability; c++ {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) {
			break // the kernel knows no more of them
		}
		bounded = bounded && err == nil
	}
	// Root may need them to get at its program.
	needs := changes || bounded && os.Geteuid() == 0
	sets, err := capabilities()
	if err != nil {
		return err
	}
	for i := range sets {
		sets[i].Inheritable = 0 // and with it the ambient ones
		if !needs {
			sets[i].Permitted, sets[i].Effective = 0, 0
		}
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if err := unix.Capset(&header, &sets[0]); err != nil {
		return os.NewSyscallError("capset", err)
	}
	return nil
}

// maxCapability is the highest number that a capability can have.
const maxCapability = 63

func capabilities() (sets [2]unix.CapUserData, err error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	return sets, os.NewSyscallError("capget", unix.Capget(&header, &sets[0]))
}

// hasCapability reports whether the calling process can use a capability now.
func hasCapability(number int) bool {
	sets, err := capabilities()
	return err == nil && sets[number/32].Effective&(1<<(number%32)) != 0
}

// CheckAccount reports why this process can't run workers as the account, or
// nil. The error is an [ErrAccount].
func CheckAccount(a *Account) error {
	if a.ours() {
		return nil
	}
	var missing []string
	for _, c := range []struct {
		name   string
		number int
	}{
		{"CAP_SETUID", unix.CAP_SETUID}, {"CAP_SETGID", unix.CAP_SETGID}, // to become the user
		{"CAP_KILL", unix.CAP_KILL}, // to end its processes
	} {
		if !hasCapability(c.number) {
			missing = append(missing, c.name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w: the supervisor runs as user %d without %s; start it as root", ErrAccount, os.Geteuid(), strings.Join(missing, ", "))
	}
	return nil
}

// ours reports whether this process runs as the account already.
func (a *Account) ours() bool {
	if int(a.UID) != os.Geteuid() || int(a.GID) != os.Getegid() {
		return false
	}
	if os.Geteuid() != 0 {
		return true // it can't change its groups
	}
	groups, err := os.Getgroups()
	return err == nil && !slices.ContainsFunc(groups, func(g int) bool { return !a.in(uint32(g)) })
}

// credential is what the child becomes; nil for what this process is.
func (a *Account) credential() *syscall.Credential {
	if a == nil || a.ours() {
		return nil
	}
	return &syscall.Credential{Uid: a.UID, Gid: a.GID, Groups: a.Groups}
}

// become gives the calling thread the IDs of the account, and no capabilities.
//
// Preconditions: the thread is onOwnThread's.
func (a *Account) become() error {
	// The functions of package syscall would change all threads.
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(a.GID), uintptr(a.GID), uintptr(a.GID)); errno != 0 {
		return os.NewSyscallError("setresgid", errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(a.UID), uintptr(a.UID), uintptr(a.UID)); errno != 0 {
		return os.NewSyscallError("setresuid", errno)
	}
	return nil
}

// keepDumpable undoes what a change of user does to the whole process, since
// the child shares its memory until it runs its program: core dumps and
// debuggers would be turned off for the supervisor.
func keepDumpable() (restore func()) {
	was, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	return func() {
		if err == nil && was == 1 {
			_ = unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)
		}
	}
}

// setLimit bounds a resource of a process. A process of another user lets
// only that user do it, or CAP_SYS_RESOURCE, which a supervisor in a container
// rarely has.
func setLimit(pid, resource int, limit uint64, account *Account) error {
	l := unix.Rlimit{Cur: limit, Max: limit}
	err := unix.Prlimit(pid, resource, &l, nil)
	if !errors.Is(err, unix.EPERM) || account.credential() == nil {
		return err
	}
	defer keepDumpable()()
	onOwnThread(func() {
		if err = account.become(); err == nil {
			err = unix.Prlimit(pid, resource, &l, nil)
		}
	})
	return err
}

// allows reports why the account can't run the image, or nil, as far as mode
// bits tell. It has to be readable too: the worker hands its program on to the
// next supervisor.
func (i *image) allows(a *Account) error {
	fd, err := descriptor(i.file)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	if a.mayRead(st.Uid, st.Gid, st.Mode) && a.mayRun(st.Uid, st.Gid, st.Mode) {
		return nil
	}
	if n, err := unix.Fgetxattr(fd, "system.posix_acl_access", nil); err == nil && n > 0 {
		return nil // more than the mode bits say; the start will show
	}
	return fmt.Errorf("%w: %s is not for %s: its mode is %04o and it belongs to %d:%d; chmod a+rx it",
		ErrAccount, i.path, a, st.Mode&0o7777, st.Uid, st.Gid)
}
