package supervisor

import (
	"net"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// guardedListener hands on connections of this user and of root only, and no
// more at once than it has room for: what is beyond that is closed, so that
// clients which do not go away can't use up descriptors.
type guardedListener struct {
	*net.UnixListener
	room    chan struct{}
	refused refusals
}

// refusals logs who was turned away, no more than once a second: whoever may
// connect could fill the log.
type refusals struct {
	log   *zap.Logger
	last  time.Time
	since int // that were not logged
}

func (r *refusals) add(cred *unix.Ucred, now time.Time) {
	if !r.last.IsZero() && now.Sub(r.last) < time.Second {
		r.since++
		return
	}
	fields := []zap.Field{zap.Int("before", r.since)}
	if cred != nil {
		fields = append(fields, zap.Int32("pid", cred.Pid), zap.Uint32("uid", cred.Uid), zap.Uint32("gid", cred.Gid))
	}
	r.log.Warn("another user was refused at the admin socket", fields...)
	r.last, r.since = now, 0
}

func (l *guardedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if cred := peerOf(c); !permitted(cred) {
			l.refused.add(cred, time.Now())
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

// peerOf asks the kernel who connected; nil when that can't be told.
func peerOf(c *net.UnixConn) *unix.Ucred {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || credErr != nil {
		return nil
	}
	return cred
}

// permitted says whether a client may use the admin API.
func permitted(cred *unix.Ucred) bool {
	return cred != nil && (cred.Uid == 0 || int(cred.Uid) == os.Geteuid())
}
