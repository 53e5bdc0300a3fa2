package supervisor

import (
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// guardedListener hands on connections of this user and of root only, and no
// more at once than it has room for: what is beyond that is closed, so that
// clients which do not go away can't use up descriptors.
type guardedListener struct {
	*net.UnixListener
	room chan struct{}
}

func (l *guardedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if !permitted(c) {
			c.Close()
			continue
		}
		select {
		case l.room <- struct{}{}:
			return &guardedConn{UnixConn: c, leave: sync.OnceFunc(func() { <-l.room })}, nil
		default:
			c.Close()
		}
	}
}

type guardedConn struct {
	*net.UnixConn
	leave func()
}

func (c *guardedConn) Close() error {
	defer c.leave()
	return c.UnixConn.Close()
}

// permitted asks the kernel who connected.
func permitted(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || credErr != nil {
		return false
	}
	return cred.Uid == 0 || int(cred.Uid) == os.Geteuid()
}
