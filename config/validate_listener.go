package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

func (v *validator) listeners(c *Config) {
	if v.set("listeners") && v.ok("listeners") {
		if n := len(c.Listeners); n == 0 || n > MaxListeners {
			v.fault("listeners", fmt.Sprintf("%d listeners", n), fmt.Sprintf("1 to %d", MaxListeners))
		}
	}
	names := map[string]string{}
	for i := range c.Listeners {
		l, path := &c.Listeners[i], item("listeners", i)
		if v.ok(path + ".name") {
			if v.set(path+".name") && !isName(l.Name) {
				v.fault(path+".name", quote(l.Name), keyOf("listeners[].name").expected)
			}
			v.unique(names, path+".name", l.Name, "name")
		}
		v.address(l, path)
		v.protocols(l, path)
		v.tls(&l.TLS, path+".tls")
		if l.DrainTimeout == 0 {
			l.DrainTimeout = c.Drain.Timeout
		}
	}
	v.overlaps(c)
}

// endpoint is a parsed listener address; an invalid IP stands for all.
type endpoint struct {
	ip   netip.Addr
	port int
}

func parseAddress(s string) (endpoint, bool) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return endpoint{}, false
	}
	host, digits := s[:i], s[i+1:]
	port, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || port == 0 {
		return endpoint{}, false
	}
	e := endpoint{port: int(port)}
	if host == "" {
		return e, true
	}
	six := strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]")
	if six {
		host = host[1 : len(host)-1]
	}
	e.ip, err = netip.ParseAddr(host)
	return e, err == nil && e.ip.Is6() == six
}

func (v *validator) address(l *Listener, path string) {
	sub := path + ".address"
	if !v.ok(sub) || !v.set(sub) {
		return
	}
	e, ok := parseAddress(l.Address)
	if !ok {
		v.fault(sub, quote(l.Address), keyOf("listeners[].address").expected)
		return
	}
	if l.AdvertisePort == 0 {
		l.AdvertisePort = e.port
	}
}

func (v *validator) protocols(l *Listener, path string) {
	sub := path + ".protocols"
	if !v.ok(sub) {
		return
	}
	if len(l.Protocols) == 0 {
		v.fault(sub, "no protocols", "at least one of "+enumerate(keyOf("listeners[].protocols").enum, "and"))
		return
	}
	clean := true
	seen := map[string]string{}
	for i, p := range l.Protocols {
		v.unique(seen, item(sub, i), p, "protocol")
		if (p == ProtocolQUIC || p == ProtocolTCP) && !v.set("worker.command") && v.ok(item(sub, i)) {
			v.fault(item(sub, i), quote(p), "h3, h2 or http/1.1, unless there is a worker.command")
		}
		clean = clean && v.ok(item(sub, i))
	}
	if !clean {
		return
	}
	if v.set(path+".quic") && !l.UDP() {
		v.fault(path+".quic", "settings of h3", "none, since h3 is not among the protocols")
	}
	if v.set(path+".advertise_port") && (!l.UDP() || !l.TCP()) {
		v.fault(path+".advertise_port", "a port to advertise", "none, unless the protocols are h3 and one of h2 and http/1.1")
	}
}

// overlaps reports listeners that would bind the same socket.
func (v *validator) overlaps(c *Config) {
	type bound struct {
		endpoint
		path     string
		udp, tcp bool
	}
	var all []bound
	for i := range c.Listeners {
		l, path := &c.Listeners[i], item("listeners", i)+".address"
		e, ok := parseAddress(l.Address)
		if !ok || !v.ok(path) {
			continue
		}
		b := bound{e, path, l.UDP(), l.TCP()}
		j := slices.IndexFunc(all, func(o bound) bool {
			return o.port == b.port && (o.udp && b.udp || o.tcp && b.tcp) && sameHost(o.ip, b.ip)
		})
		if j >= 0 {
			at := v.where(all[j].path)
			v.fault(path, quote(l.Address), fmt.Sprintf("an address that is not in use by another listener (see %d:%d)", at.line, at.column))
			continue
		}
		all = append(all, b)
	}
}

// sameHost reports whether two hosts can't be bound on one port: all
// addresses include each single one, and :: includes IPv4.
func sameHost(a, b netip.Addr) bool {
	a, b = a.Unmap(), b.Unmap()
	for range 2 {
		if !a.IsValid() || a == netip.IPv6Unspecified() || a == netip.IPv4Unspecified() && b.Is4() {
			return true
		}
		a, b = b, a
	}
	return a == b
}
