package supervisor

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
)

const (
	networkUDP = "udp"
	networkTCP = "tcp"

	maxListeners = 64 // channels of a packet queue, bits of a listener set
)

// listener is a name and a port for as long as any generation knows them.
// What it listens on besides (the host part) may change.
type listener struct {
	id   uint8
	name string
	port string // as configured, part of the identity
	real string // the port that the kernel gave when port is 0
	sets []*socketSet
}

// socketSet is the sockets of one listener on one address: a reuseport group
// of reader sockets, or one TCP socket.
type socketSet struct {
	listener *listener
	network  string
	address  string // wanted, host:port in canonical form
	sockets  []*listenSocket
	v6only   bool
	released bool // of TCP: a generation that drains does not keep it
	// shared says that a passed socket has to do for all readers, since no
	// other can be bound beside it.
	shared bool
}

// listenSocket is one listening socket. The *os.File stays reachable from
// here until the socket is retired.
type listenSocket struct {
	set   *socketSet
	index int // within (listener, network), for ever
	file  *os.File
	bound string
	// passed is set when the socket was bound by the service manager, or is
	// known to it from a run before.
	passed *passedFile
}

// socketKey names a socket between the two ends of a lifeline.
type socketKey struct {
	listener uint8
	network  string
	index    int
}

func (l *listenSocket) key() socketKey {
	return socketKey{l.set.listener.id, l.set.network, l.index}
}

// sockets is all listening sockets. It belongs to the loop.
type sockets struct {
	env       *env
	listeners [maxListeners]*listener
	// next numbers the sockets of a listener ID; never reset, so that an
	// index names one socket even when the ID is used again.
	next [maxListeners][2]int
	// ours reports whether a process is a worker of this supervisor: one that
	// still has to close a socket which was retired is no foreign holder.
	ours func(pid int) bool
	// warn is told once per address what could not be had as configured.
	warn    func(address string, err error)
	warned  map[string]bool
	options socketOptions
	// passed is what the service manager has passed and no set uses; settled
	// says that no more is to be expected of it than what the sets had.
	passed  []*passedFile
	settled bool
}

// wanted is one listener of a generation with the sets that it asks for.
type wanted struct {
	listener *listener
	spec     ListenerSpec
	address  string // canonical, with the real port
	v6only   bool
}

// register finds or makes the listeners of specs. On error nothing is
// registered that was not before.
func (s *sockets) register(specs []ListenerSpec, strict bool) ([]wanted, error) {
	out := make([]wanted, 0, len(specs))
	var fresh []*listener
	fail := func(err error) ([]wanted, error) {
		for _, l := range fresh {
			s.listeners[l.id] = nil
		}
		return nil, err
	}
	for _, spec := range specs {
		host, port, err := net.SplitHostPort(spec.Address)
		if err == nil {
			host, err = s.usableHost(host, spec.Address, strict)
		}
		if err != nil {
			return fail(fmt.Errorf("listener %q: %w", spec.Name, err))
		}
		l := s.find(spec.Name, port)
		if l == nil {
			l = s.renamed(canonical(host, port), specs)
		}
		if l == nil {
			id := slices.Index(s.listeners[:], nil)
			if id < 0 {
				return fail(fmt.Errorf("%w: all %d listener numbers are in use by this and the draining generations", ErrLimit, maxListeners))
			}
			l = &listener{id: uint8(id), name: spec.Name, port: port, real: port}
			s.listeners[id] = l
			fresh = append(fresh, l)
		}
		out = append(out, wanted{listener: l, spec: spec, address: canonical(host, l.real)})
	}
	if err := s.clash(out); err != nil {
		return fail(err)
	}
	for _, w := range out {
		w.listener.name = w.spec.Name
	}
	// A dual-stack socket takes all of IPv4 of its port, so when both
	// wildcards are asked for, the IPv6 one keeps to its family.
	for i, w := range out {
		out[i].v6only = isAny6(w.address) && slices.ContainsFunc(out, func(o wanted) bool {
			return !isIPv6(o.address) && portOf(o.address) == portOf(w.address)
		})
	}
	return out, nil
}

func (s *sockets) find(name, port string) *listener {
	for _, l := range s.listeners {
		if l != nil && l.name == name && l.port == port {
			return l
		}
	}
	return nil
}

// renamed returns the listener that has sockets on the address under a name
// that the configuration no longer has: the same listener by another name. A
// second one on the same address would share its reuseport group, and each
// would get the other's packets.
func (s *sockets) renamed(address string, specs []ListenerSpec) *listener {
	for _, l := range s.listeners {
		if l == nil || slices.ContainsFunc(specs, func(o ListenerSpec) bool { return o.Name == l.name && portOf(o.Address) == l.port }) {
			continue
		}
		if l.set(networkUDP, address) != nil || l.set(networkTCP, address) != nil {
			return l
		}
	}
	return nil
}

// clash refuses what would put two listeners into one reuseport group.
func (s *sockets) clash(out []wanted) error {
	for i, w := range out {
		if portOf(w.address) == "0" {
			continue
		}
		for _, o := range out[:i] {
			if o.listener == w.listener || o.address == w.address && (o.spec.QUIC && w.spec.QUIC || o.spec.TCP && w.spec.TCP) {
				return fmt.Errorf("listeners %q and %q have the same address %s", o.spec.Name, w.spec.Name, w.address)
			}
		}
		for _, l := range s.listeners {
			if l == nil || l == w.listener {
				continue
			}
			if w.spec.QUIC && l.set(networkUDP, w.address) != nil || w.spec.TCP && l.set(networkTCP, w.address) != nil {
				return fmt.Errorf("listener %q: %s is still served as listener %q of a draining generation", w.spec.Name, w.address, l.name)
			}
		}
	}
	return nil
}

// missing returns the sets that w needs, made but not bound where there are
// none yet.
func (s *sockets) missing(w wanted) []*socketSet {
	var out []*socketSet
	for _, n := range []struct {
		network string
		on      bool
	}{{networkUDP, w.spec.QUIC}, {networkTCP, w.spec.TCP}} {
		if n.on && w.listener.set(n.network, w.address) == nil {
			out = append(out, &socketSet{listener: w.listener, network: n.network, address: w.address, v6only: w.v6only})
		}
	}
	return out
}

func (l *listener) set(network, address string) *socketSet {
	for _, set := range l.sets {
		if set.network == network && set.address == address {
			return set
		}
	}
	return nil
}

// overlapping reports whether a socket of ours lies on an address that
// contains or is contained in address. Binding there takes packets from that
// socket, so it has to be read at once.
func (s *sockets) overlapping(network, address string) bool {
	for _, l := range s.listeners {
		if l == nil {
			continue
		}
		for _, set := range l.sets {
			if set.network == network && len(set.sockets) > 0 && overlap(set.address, address) {
				return true
			}
		}
	}
	return false
}

// takesFrom reports whether binding the set takes packets from sockets that
// the listener has on a wider address.
func (l *listener) takesFrom(set *socketSet) bool {
	return slices.ContainsFunc(l.sets, func(o *socketSet) bool {
		return o.network == set.network && o.address != set.address && contains(o.address, set.address)
	})
}

// grow binds sockets of a set until it has count; a set of TCP has one. The
// first socket of an address that no socket of ours overlaps is preceded by a
// look for foreign holders.
func (s *sockets) grow(set *socketSet, count int) error {
	if set.network == networkTCP {
		count = 1
	}
	l := set.listener
	s.settlePort(set)
	if len(set.sockets) == 0 {
		if err := s.adopt(set); err != nil {
			return err
		}
	}
	if len(set.sockets) == 0 && portOf(set.address) != "0" && !s.overlapping(set.network, set.address) {
		if err := s.env.tryBind(set.network, set.address); err != nil && !s.heldByUs(err) {
			return fmt.Errorf("listener %q: %w", l.name, err)
		}
	}
	for len(set.sockets) < count {
		options := s.options
		options.v6only = set.v6only
		file, bound, err := s.env.bind(set.network, set.address, options)
		if set.shared = err != nil && len(set.sockets) > 0 && set.sockets[0].passed != nil; set.shared {
			s.warnOnce(set.address, fmt.Errorf("%w (%w)", errNotJoined, err))
			break
		}
		if err != nil {
			if !slices.Contains(l.sets, set) {
				s.close(set)
			}
			return fmt.Errorf("listener %q: %w", l.name, err)
		}
		set.sockets = append(set.sockets, &listenSocket{set: set, index: s.takeIndex(set), file: file, bound: bound})
		if portOf(set.address) == "0" {
			l.real = portOf(bound)
			s.settlePort(set)
		}
	}
	if !slices.Contains(l.sets, set) {
		l.sets = append(l.sets, set)
	}
	return nil
}

// takeIndex numbers the next socket of a set.
func (s *sockets) takeIndex(set *socketSet) int {
	counter := &s.next[set.listener.id][boolInt(set.network == networkTCP)]
	*counter++
	return *counter - 1
}

// warnOnce tells of an address what is told once.
func (s *sockets) warnOnce(address string, err error) {
	if !s.warned[address] {
		s.warned[address] = true
		s.warn(address, err)
	}
}

// settlePort gives a set of port 0 the port that its listener has got.
func (s *sockets) settlePort(set *socketSet) {
	if host, port, _ := net.SplitHostPort(set.address); port == "0" {
		set.address = canonical(host, set.listener.real)
	}
}

func (s *sockets) heldByUs(err error) bool {
	held, ok := errors.AsType[*holderError](err)
	return ok && held.pid > 0 && s.ours != nil && s.ours(held.pid)
}

// holderError is the refusal of an address that another process holds.
type holderError struct {
	network, address string
	pid              int // 0 when it could not be found
}

func (e *holderError) Error() string {
	by := "another program"
	if e.pid > 0 {
		by = fmt.Sprintf("process %d", e.pid)
	}
	return fmt.Sprintf("%v: %s %s is held by %s", ErrAddressInUse, e.network, e.address, by)
}

func (e *holderError) Unwrap() error { return ErrAddressInUse }

// close closes a set's sockets and forgets it.
func (s *sockets) close(set *socketSet) {
	for _, sock := range set.sockets {
		if !s.giveBack(sock) {
			sock.file.Close()
		}
	}
	set.sockets = nil
	set.listener.sets = slices.DeleteFunc(set.listener.sets, func(o *socketSet) bool { return o == set })
}

// forget frees the listener's number.
//
// Preconditions: no generation knows the listener.
func (s *sockets) forget(l *listener) {
	for _, set := range slices.Clone(l.sets) {
		s.close(set)
	}
	if s.listeners[l.id] == l {
		s.listeners[l.id] = nil
	}
}

// all returns the listeners in the order of their numbers.
func (s *sockets) all() []*listener {
	var out []*listener
	for _, l := range s.listeners {
		if l != nil {
			out = append(out, l)
		}
	}
	return out
}

func (l *listenSocket) describe(retiring bool) lifeline.Socket {
	return lifeline.Socket{
		Listener: l.set.listener.id, Network: l.set.network, Address: l.bound, Index: l.index, Retiring: retiring,
	}
}
