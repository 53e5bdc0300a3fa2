package supervisor

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// inherited takes the descriptors that the environment promises to this
// process, and the promise out of the environment: no program that is started
// from here is to believe it.
func inherited(anyPID bool) (files []*passedFile, problems []error) {
	names, err := passedNames(os.Getenv, os.Getpid(), anyPID)
	for _, name := range []string{"LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "LISTEN_PIDFDID"} {
		if unsetErr := os.Unsetenv(name); unsetErr != nil {
			problems = append(problems, unsetErr)
		}
	}
	if err != nil {
		return nil, append(problems, err)
	}
	for i, name := range names {
		p, err := inheritedFile(firstPassed+i, name)
		if err != nil {
			problems = append(problems, fmt.Errorf("descriptor %d, %q: %w", firstPassed+i, name, err))
			continue
		}
		files = append(files, p)
	}
	return files, problems
}

func inheritedFile(fd int, name string) (*passedFile, error) {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	p := &passedFile{name: name}
	var err error
	if p.network, p.bound, err = listensOn(fd); err != nil {
		return nil, err
	}
	// As in bindSocket: a file made of a descriptor that does not block would
	// be in Go's poller.
	if err := unix.SetNonblock(fd, false); err != nil {
		return nil, os.NewSyscallError("fcntl O_NONBLOCK", err)
	}
	p.file = os.NewFile(uintptr(fd), name)
	if p.network == "" {
		return p, nil
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, os.NewSyscallError("fcntl O_NONBLOCK", err)
	}
	return p, nil
}

// listensOn returns the network and address of a socket of the Internet; "" for
// what is none.
func listensOn(fd int) (network, bound string, err error) {
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if errors.Is(err, unix.ENOTSOCK) {
		return "", "", nil
	}
	if err != nil {
		return "", "", os.NewSyscallError("getsockopt SO_TYPE", err)
	}
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return "", "", os.NewSyscallError("getsockopt SO_DOMAIN", err)
	}
	protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err != nil {
		return "", "", os.NewSyscallError("getsockopt SO_PROTOCOL", err)
	}
	switch {
	case domain != unix.AF_INET && domain != unix.AF_INET6:
		return "", "", nil
	case kind == unix.SOCK_DGRAM && protocol == unix.IPPROTO_UDP:
		network = networkUDP
	case kind == unix.SOCK_STREAM && (protocol == unix.IPPROTO_TCP || protocol == unix.IPPROTO_MPTCP):
		network = networkTCP
	default:
		return "", "", nil
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return "", "", os.NewSyscallError("getsockname", err)
	}
	return network, addrPortOf(name).String(), nil
}

// adoptSocket sets a passed socket as bindSocket does a fresh one.
func adoptSocket(f *os.File, network string, o socketOptions) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	if controlErr := raw.Control(func(fd uintptr) { err = setAdopted(int(fd), network, o) }); controlErr != nil {
		return controlErr
	}
	return err
}

func setAdopted(fd int, network string, o socketOptions) error {
	if err := unix.SetNonblock(fd, true); err != nil {
		return os.NewSyscallError("fcntl O_NONBLOCK", err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	if network == networkTCP {
		listening, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
		if err != nil {
			return os.NewSyscallError("getsockopt SO_ACCEPTCONN", err)
		}
		if listening != 0 {
			return nil
		}
		return os.NewSyscallError("listen", unix.Listen(fd, tcpBacklog))
	}
	// The kernel lets sockets of the same user join a bound one that gets the
	// option afterwards; whether it does shows when the next one is bound.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	return setUDPOptions(fd, sa, o)
}
