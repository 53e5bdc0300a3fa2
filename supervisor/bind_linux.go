package supervisor

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/holdfast-quic/holdfast/internal/udpmsg"
)

// tcpBacklog asks for more than the kernel allows (net.core.somaxconn), which
// cuts it to its limit.
const tcpBacklog = 65535

// bindSocket opens, sets and binds one listening socket: non-blocking, close
// on exec, SO_REUSEPORT. A TCP socket listens at once.
func bindSocket(network, address string, o socketOptions) (_ *os.File, bound string, err error) {
	fd, sa, err := openSocket(network, address, o.v6only)
	if err != nil {
		return nil, "", err
	}
	// The file is made of a blocking descriptor: one that does not block would
	// get into Go's poller, and every packet of every client would wake this
	// process, which never reads one.
	f := os.NewFile(uintptr(fd), network+" "+address)
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, "", os.NewSyscallError("fcntl O_NONBLOCK", err)
	}
	// TCP too: only with it may an address that contains a bound one be bound
	// beside it, when a listener moves.
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return nil, "", os.NewSyscallError("setsockopt SO_REUSEPORT", err)
	}
	if network == networkUDP {
		if err := setUDPOptions(fd, sa, o); err != nil {
			return nil, "", err
		}
	}
	if err := unix.Bind(fd, sa); err != nil {
		return nil, "", bindError(network, address, err)
	}
	if network == networkTCP {
		if err := unix.Listen(fd, tcpBacklog); err != nil {
			return nil, "", bindError(network, address, err)
		}
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return nil, "", os.NewSyscallError("getsockname", err)
	}
	return f, addrPortOf(name).String(), nil
}

// tryBindSocket binds without SO_REUSEPORT and closes at once. A program that
// holds the address, even one of the same user that has SO_REUSEPORT set and
// would get half of the traffic, makes it fail.
func tryBindSocket(network, address string) error {
	fd, sa, err := openSocket(network, address, false)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, sa); err != nil {
		return bindError(network, address, err)
	}
	if network != networkTCP {
		return nil
	}
	// SO_REUSEADDR lets bind succeed beside connections of an earlier life;
	// only listen tells whether somebody listens.
	if err := unix.Listen(fd, 1); err != nil {
		return bindError(network, address, err)
	}
	return nil
}

func openSocket(network, address string, v6only bool) (int, unix.Sockaddr, error) {
	sa, domain, err := sockaddr(address)
	if err != nil {
		return -1, nil, err
	}
	kind := unix.SOCK_DGRAM
	if network == networkTCP {
		kind = unix.SOCK_STREAM
	}
	fd, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, nil, os.NewSyscallError("socket", err)
	}
	if network == networkTCP {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			unix.Close(fd)
			return -1, nil, os.NewSyscallError("setsockopt SO_REUSEADDR", err)
		}
	}
	if domain == unix.AF_INET6 {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, boolInt(v6only)); err != nil {
			unix.Close(fd)
			return -1, nil, os.NewSyscallError("setsockopt IPV6_V6ONLY", err)
		}
	}
	return fd, sa, nil
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// setUDPOptions sets what must be set before the first packet arrives. Which
// control messages a reader wants (GRO, ECN, packet info) the workers set:
// they are the same for all.
func setUDPOptions(fd int, sa unix.Sockaddr, o socketOptions) error {
	granted := setBuffer(fd, unix.SO_RCVBUF, unix.SO_RCVBUFFORCE, o.receiveBuffer)
	setBuffer(fd, unix.SO_SNDBUF, unix.SO_SNDBUFFORCE, o.sendBuffer)
	if o.granted != nil {
		o.granted(granted)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 1); err != nil {
		return os.NewSyscallError("setsockopt SO_RXQ_OVFL", err)
	}
	_, v6 := sa.(*unix.SockaddrInet6)
	if v6 {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1); err != nil {
			return os.NewSyscallError("setsockopt IPV6_RECVPKTINFO", err)
		}
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1); err != nil {
			return os.NewSyscallError("setsockopt IPV6_RECVTCLASS", err)
		}
	}
	// A dual-stack socket reports these for its IPv4 packets.
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1); err != nil && !v6 {
		return os.NewSyscallError("setsockopt IP_PKTINFO", err)
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVTOS, 1); err != nil && !v6 {
		return os.NewSyscallError("setsockopt IP_RECVTOS", err)
	}
	return nil
}

// setBuffer asks for a buffer of that many bytes, with the right to exceed the
// host's limit if there is one, and returns what the kernel gave.
func setBuffer(fd, option, force, want int) int {
	if want <= 0 {
		return 0
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, want) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, want)
	}
	got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, option)
	if err != nil {
		return 0
	}
	return got / bufferFactor
}

// bufferFactor is by how much the kernel exceeds the buffer that it is asked
// for, to have room for its own bookkeeping: socket(7).
const bufferFactor = 2

// socketUse asks the kernel about one listening socket.
func socketUse(f *os.File) (receiveBuffer int, drops uint32, err error) {
	fd, err := descriptor(f)
	if err != nil {
		return 0, 0, err
	}
	m, err := udpmsg.MemoryOf(fd)
	return m.Limit / bufferFactor, m.Dropped, err
}

// sockaddr parses host:port; an empty host is any address of both families.
func sockaddr(address string) (unix.Sockaddr, int, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, 0, err
	}
	if host == "" {
		host = "::"
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, 0, fmt.Errorf("port %q is not 0 to 65535", port)
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		resolved, lookupErr := net.ResolveIPAddr("ip", host)
		if lookupErr != nil {
			return nil, 0, lookupErr
		}
		ip, _ = netip.AddrFromSlice(resolved.IP)
		ip = ip.Unmap().WithZone(resolved.Zone)
	}
	if ip.Is4() {
		return &unix.SockaddrInet4{Addr: ip.As4(), Port: int(number)}, unix.AF_INET, nil
	}
	sa := &unix.SockaddrInet6{Addr: ip.As16(), Port: int(number)}
	if zone := ip.Zone(); zone != "" {
		iface, err := net.InterfaceByName(zone)
		if err != nil {
			return nil, 0, fmt.Errorf("zone %q: %w", zone, err)
		}
		sa.ZoneId = uint32(iface.Index)
	}
	return sa, unix.AF_INET6, nil
}

func addrPortOf(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		ip := netip.AddrFrom16(sa.Addr)
		if sa.ZoneId != 0 {
			if iface, err := net.InterfaceByIndex(int(sa.ZoneId)); err == nil {
				ip = ip.WithZone(iface.Name)
			}
		}
		return netip.AddrPortFrom(ip, uint16(sa.Port))
	}
	return netip.AddrPort{}
}

// ipv6Missing returns why this host has no IPv6, or nil. Where the loopback
// address can't be bound, any other address of the family still counts.
func ipv6Missing() error {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	loopback := unix.SockaddrInet6{Addr: netip.IPv6Loopback().As16()}
	err = unix.Bind(fd, &loopback)
	if err == nil {
		return nil
	}
	addresses, _ := net.InterfaceAddrs()
	for _, a := range addresses {
		if prefix, parseErr := netip.ParsePrefix(a.String()); parseErr == nil && prefix.Addr().Is6() {
			return nil
		}
	}
	return os.NewSyscallError("bind ::1", err)
}

// bindError names the address, what is wrong and who may be the cause.
func bindError(network, address string, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return &holderError{network: network, address: address, pid: holderOf(network, address)}
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("bind %s %s: %w (ports below net.ipv4.ip_unprivileged_port_start need CAP_NET_BIND_SERVICE: %s)", network, address, err, lowPortsCure)
	}
	return fmt.Errorf("bind %s %s: %w", network, address, err)
}

// holderOf looks for a process that holds the port, as far as /proc shows it;
// 0 if none is found.
func holderOf(network, address string) int {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return 0
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return 0
	}
	inodes := map[string]bool{}
	for _, table := range []string{network, network + "6"} {
		collectInodes(filepath.Join("/proc/net", table), network == networkTCP, number, inodes)
	}
	if len(inodes) == 0 {
		return 0
	}
	links, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return 0
	}
	for _, link := range links {
		target, err := os.Readlink(link)
		if err != nil || !inodes[strings.TrimSuffix(strings.TrimPrefix(target, "socket:["), "]")] {
			continue
		}
		pid, err := strconv.Atoi(strings.Split(link, "/")[2])
		if err == nil {
			return pid
		}
	}
	return 0
}

// collectInodes reads one table of /proc/net and adds the sockets bound to
// the port; of TCP only those that listen.
func collectInodes(path string, listening bool, port int, into map[string]bool) {
	f, err := os.Open(path)
	if err != nil {
		return
	}
	defer f.Close()
	const (
		local, state, inode = 1, 3, 9
		listen              = "0A"
	)
	suffix := fmt.Sprintf(":%04X", port)
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) <= inode || !strings.HasSuffix(fields[local], suffix) {
			continue
		}
		if listening && fields[state] != listen {
			continue
		}
		into[fields[inode]] = true
	}
}
