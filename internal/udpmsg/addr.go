package udpmsg

import (
	"net"
	"net/netip"
	"strconv"
)

// Address families, as they stand in Addr.Family.
const (
	IPv4 = 4
	IPv6 = 6
)

// Addr is an IP address and port as a comparable value. An IPv4 address lies
// in the first four bytes; an IPv4-mapped IPv6 address never occurs, since
// receiving unmaps and sending maps as the socket needs it. The fields are
// those of packetqueue.Endpoint, so that the one converts to the other.
type Addr struct {
	Addr   [16]byte
	Zone   uint32 // interface index of a link-local IPv6 address
	Port   uint16
	Family uint8 // IPv4 or IPv6; zero: no address
}

// AddrFrom makes an Addr of a net.UDPAddr, of which the zone may be a number
// or the name of an interface. It reports false for an address of no known
// family. It does not allocate unless the zone is a name.
func AddrFrom(a *net.UDPAddr) (Addr, bool) {
	out := Addr{Port: uint16(a.Port)}
	if ip4 := a.IP.To4(); ip4 != nil {
		out.Family = IPv4
		copy(out.Addr[:4], ip4)
		return out, true
	}
	if len(a.IP) != net.IPv6len {
		// The unspecified address may be written as nothing at all.
		if len(a.IP) != 0 {
			return Addr{}, false
		}
		out.Family = IPv6
		return out, true
	}
	out.Family = IPv6
	copy(out.Addr[:], a.IP)
	if a.Zone != "" {
		out.Zone = zoneIndex(a.Zone)
	}
	return out, true
}

// UDPAddr makes a net.UDPAddr of a. IPv4 addresses have four bytes, and a
// zone is written as a number.
func (a Addr) UDPAddr() *net.UDPAddr {
	out := &net.UDPAddr{Port: int(a.Port)}
	if a.Family == IPv4 {
		out.IP = append(net.IP(nil), a.Addr[:4]...)
		return out
	}
	out.IP = append(net.IP(nil), a.Addr[:]...)
	if a.Zone != 0 {
		out.Zone = strconv.FormatUint(uint64(a.Zone), 10)
	}
	return out
}

// IsUnspecified reports whether a is the wildcard address of its family.
func (a Addr) IsUnspecified() bool { return a.Addr == [16]byte{} }

// SameIP reports whether a and b are of one family and hold one IP address.
func (a Addr) SameIP(b Addr) bool { return a.Family == b.Family && a.Addr == b.Addr }

// String returns a as host:port.
func (a Addr) String() string {
	switch a.Family {
	case IPv4:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(a.Addr[:4])), a.Port).String()
	case IPv6:
		ip := netip.AddrFrom16(a.Addr)
		if a.Zone != 0 {
			ip = ip.WithZone(strconv.FormatUint(uint64(a.Zone), 10))
		}
		return netip.AddrPortFrom(ip, a.Port).String()
	}
	return "invalid"
}

// mapped4 is the prefix of an IPv4-mapped IPv6 address (RFC 4291, 2.5.5.2).
var mapped4 = [12]byte{10: 0xff, 11: 0xff}

// unmap turns an IPv4-mapped IPv6 address into the IPv4 address it stands for.
func (a *Addr) unmap() {
	if a.Family != IPv6 || [12]byte(a.Addr[:12]) != mapped4 {
		return
	}
	ip := [4]byte(a.Addr[12:])
	a.Addr = [16]byte{}
	copy(a.Addr[:], ip[:])
	a.Family, a.Zone = IPv4, 0
}

func zoneIndex(zone string) uint32 {
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return uint32(n)
	}
	if i, err := net.InterfaceByName(zone); err == nil {
		return uint32(i.Index)
	}
	return 0
}
