package worker

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// quic-go, which would have buffers of 7 MiB, does not change those that the
// supervisor has set, not even with the right to. C095
func TestBuffersAreTheSupervisors(t *testing.T) {
	for _, network := range []string{"udp4", "udp6"} {
		t.Run(network, func(t *testing.T) {
			host := map[string]string{"udp4": "127.0.0.1", "udp6": "::1"}[network]
			s := newService(t)
			sock := s.listen(network, net.JoinHostPort(host, "0"))
			fd, err := dupFD(sock)
			must(t, err)
			defer unix.Close(fd)
			options := []int{unix.SO_RCVBUF, unix.SO_SNDBUF}
			before := map[int]int{}
			for _, o := range options {
				must(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, o, 64<<10))
				before[o], err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, o)
				must(t, err)
			}
			m := s.start(0, 1, sock).echo()
			s.current(1)
			m.read(0)
			s.dial(network, "", address(t, sock, host)).ping(100_000)
			for _, o := range options {
				if n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, o); err != nil || n != before[o] {
					t.Errorf("option %d was %d and is %d, %v", o, before[o], n, err)
				}
			}
		})
	}
}

// What quic-go sets options on is closed with the conn.
func TestStandInIsClosed(t *testing.T) {
	s := newService(t)
	m := s.start(0, 1, s.listen("udp4", "127.0.0.1:0"))
	c := m.l.conn
	raw, err := c.SyscallConn()
	must(t, err)
	must(t, raw.Control(func(uintptr) {}))
	m.stop()
	if err := raw.Control(func(uintptr) {}); err == nil {
		t.Error("it is open after the conn was closed")
	}
}
