package gateway

import (
	"net"
	"net/http"
	"net/netip"
)

// remoteAddr returns the client's address. On a socket for both families the
// kernel shows an IPv4 client as an IPv6 address; nobody who reads a log or an
// upstream's header wants to know.
func remoteAddr(r *http.Request) string { return unmapped(r.RemoteAddr) }

func unmapped(addr string) string {
	ap, err := netip.ParseAddrPort(addr)
	if err != nil || !ap.Addr().Is4In6() {
		return addr
	}
	return net.JoinHostPort(ap.Addr().Unmap().String(), portOf(addr))
}

func portOf(addr string) string {
	_, port, _ := net.SplitHostPort(addr)
	return port
}
