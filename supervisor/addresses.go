package supervisor

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// usableHost returns the host to bind: on a host without IPv6 the IPv4
// counterpart of an unspecified or loopback address, with one warning, unless
// strict.
func (s *sockets) usableHost(host, address string, strict bool) (string, error) {
	ip, err := netip.ParseAddr(host)
	if host != "" && (err != nil || !ip.Is6() || ip.Is4In6()) {
		return host, nil
	}
	err = s.env.ipv6()
	if err == nil {
		return host, nil
	}
	substitute := "0.0.0.0"
	if host != "" && !ip.IsUnspecified() {
		if !ip.IsLoopback() {
			return "", fmt.Errorf("%s: this host has no IPv6: %w", address, err)
		}
		substitute = "127.0.0.1"
	}
	if strict {
		return "", fmt.Errorf("%s: this host has no IPv6 and strict is set: %w", address, err)
	}
	s.warnOnce(address, fmt.Errorf("this host has no IPv6; serving %s instead", substitute))
	return substitute, nil
}

// canonical writes an address in the one form by which sets are compared.
func canonical(host, port string) string {
	if host == "" {
		host = "::"
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		host = ip.Unmap().String()
	}
	return net.JoinHostPort(strings.ToLower(host), port)
}

func portOf(address string) string {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return ""
	}
	return port
}

func isIPv6(address string) bool {
	a, err := netip.ParseAddrPort(address)
	return err == nil && a.Addr().Is6()
}

func isAny6(address string) bool {
	a, err := netip.ParseAddrPort(address)
	return err == nil && a.Addr() == netip.IPv6Unspecified()
}

// contains reports whether a socket on the canonical address wide can receive
// what is sent to narrow. The IPv6 wildcard counts as containing all of IPv4:
// it does, unless it shares its port with an IPv4 listener, and then the two
// never move into each other.
func contains(wide, narrow string) bool {
	w, errW := netip.ParseAddrPort(wide)
	n, errN := netip.ParseAddrPort(narrow)
	if errW != nil || errN != nil {
		return wide == narrow
	}
	return w.Port() == n.Port() && (w.Addr() == n.Addr() || w.Addr() == netip.IPv6Unspecified() ||
		w.Addr() == netip.IPv4Unspecified() && n.Addr().Is4())
}

// overlap reports whether two canonical addresses can receive the same packet.
func overlap(a, b string) bool { return contains(a, b) || contains(b, a) }
