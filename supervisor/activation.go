package supervisor

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"go.uber.org/zap"
)

// firstPassed is the number of the first descriptor that a service manager
// passes.
const firstPassed = 3

// maxPassed bounds what LISTEN_FDS may claim.
const maxPassed = 1 << 16

// passedFile is a descriptor that the service manager passed: one of a socket
// unit, or one that it kept for us.
type passedFile struct {
	name string // FileDescriptorName=, or the one it was stored under
	file *os.File
	// Of sockets of the Internet:
	network string
	bound   string
}

// kept reports whether it comes out of the manager's store rather than from a
// socket unit.
func (p *passedFile) kept() bool { return storable(p.name) }

func (p *passedFile) String() string {
	if p.network == "" {
		return fmt.Sprintf("%q", p.name)
	}
	return fmt.Sprintf("%q (%s %s)", p.name, p.network, p.bound)
}

// passedNames returns the names of the descriptors from firstPassed on that
// the environment promises to the process pid. What is promised to another
// process is an error, unless anyPID.
func passedNames(getenv func(string) string, pid int, anyPID bool) ([]string, error) {
	text := getenv("LISTEN_FDS")
	if text == "" {
		return nil, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > maxPassed {
		return nil, fmt.Errorf("LISTEN_FDS=%q is no number of descriptors; no passed socket is used", text)
	}
	if n == 0 {
		return nil, nil
	}
	if owner := getenv("LISTEN_PID"); owner != strconv.Itoa(pid) && !anyPID {
		return nil, fmt.Errorf("%d passed sockets are not used: LISTEN_PID is %q and this is process %d; "+
			"let the wrapper exec holdfast, or say --any-listen-pid", n, owner, pid)
	}
	names := strings.Split(getenv("LISTEN_FDNAMES"), ":")
	if len(names) != n {
		// Older managers give none. Addresses still tell which is which.
		names = slices.Repeat([]string{"unknown"}, n)
	}
	return names, nil
}

// takePassed takes what the service manager has passed. It comes before
// anything else opens descriptors of the same numbers.
func (s *Supervisor) takePassed() {
	files, problems := s.env.passed(s.opt.AnyListenPID)
	for _, err := range problems {
		s.log.Warn("passed sockets", zap.Error(err))
	}
	for _, p := range files {
		s.log.Info("passed by the service manager", zap.String("name", p.name), zap.String("network", p.network), zap.String("address", p.bound))
		switch {
		case p.network != "":
			s.sockets.passed = append(s.sockets.passed, p)
		case p.kept():
			s.kept = append(s.kept, p)
		default:
			s.log.Warn("a passed descriptor is no UDP or TCP socket and is closed", zap.String("name", p.name))
			p.file.Close()
		}
		if p.kept() {
			s.store.has(p.name, p.file)
		}
	}
}

// claim takes the passed sockets for a set: those on its very address, else
// one that has the listener's name and its port.
func (s *sockets) claim(set *socketSet) []*passedFile {
	var out []*passedFile
	for _, p := range s.passed {
		if p.network == set.network && boundTo(p.bound) == set.address && (set.network == networkUDP || len(out) == 0) {
			out = append(out, p)
		}
	}
	if len(out) == 0 {
		port := portOf(set.address)
		i := slices.IndexFunc(s.passed, func(p *passedFile) bool {
			return p.network == set.network && p.name == set.listener.name && (port == "0" || port == portOf(p.bound))
		})
		if i < 0 {
			return nil
		}
		out = append(out, s.passed[i])
	}
	s.passed = slices.DeleteFunc(s.passed, func(p *passedFile) bool { return slices.Contains(out, p) })
	return out
}

// boundTo writes the address of a bound socket as sets have theirs.
func boundTo(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return canonical(host, port)
}

// adopt makes the passed sockets for a set its own. They are never bound
// again: what is queued in them, and who else holds them, stays.
func (s *sockets) adopt(set *socketSet) error {
	for _, p := range s.claim(set) {
		options := s.options
		options.v6only = set.v6only
		if err := s.env.adopt(p.file, set.network, options); err != nil {
			s.passed = append(s.passed, p)
			return fmt.Errorf("listener %q: passed socket %s: %w", set.listener.name, p, err)
		}
		set.sockets = append(set.sockets, &listenSocket{
			set: set, index: s.takeIndex(set), file: p.file, bound: p.bound, passed: p,
		})
		if portOf(set.address) == "0" {
			set.listener.real = portOf(p.bound)
			s.settlePort(set)
		}
	}
	return nil
}

// giveBack keeps a passed socket whose listener is gone: the manager holds it
// too, so it could not be bound anew when the listener comes back. What came
// out of the store is only ours, once a generation serves.
func (s *sockets) giveBack(sock *listenSocket) bool {
	if sock.passed == nil || sock.passed.kept() && s.settled {
		return false
	}
	s.passed = append(s.passed, sock.passed)
	return true
}

// settlePassed is called when a generation has become current: what it does
// not use of the passed sockets nobody will.
func (s *Supervisor) settlePassed() {
	if s.sockets.settled {
		return
	}
	s.sockets.settled = true
	for _, p := range append(s.sockets.passed, s.kept...) {
		switch {
		case s.sockets.recognize(p):
		case p.kept():
			s.log.Info("a stored descriptor is of no use any more", zap.String("name", p.name), zap.String("address", p.bound))
		default:
			s.log.Warn("a passed socket belongs to no listener of the configuration and is closed",
				zap.String("name", p.name), zap.String("network", p.network), zap.String("address", p.bound))
		}
		p.file.Close()
	}
	s.sockets.passed, s.kept = nil, nil
}

// recognize marks the socket that is the same as a passed one: it was taken
// over from a worker that had it from the supervisor before.
func (s *sockets) recognize(p *passedFile) bool {
	for _, l := range s.all() {
		for _, set := range l.sets {
			for _, sock := range set.sockets {
				if !sameDescriptor(sock.file, p.file) {
					continue
				}
				if sock.passed == nil {
					sock.passed = &passedFile{name: p.name, file: sock.file, network: p.network, bound: p.bound}
				}
				return true
			}
		}
	}
	return false
}

func sameDescriptor(a, b *os.File) bool {
	infoA, errA := a.Stat()
	infoB, errB := b.Stat()
	return errA == nil && errB == nil && os.SameFile(infoA, infoB)
}

// unitName is the name under which a socket unit passed the socket; "" for
// one that is the supervisor's own.
func (l *listenSocket) unitName() string {
	if l.passed == nil || l.passed.kept() {
		return ""
	}
	return l.passed.name
}

// mark notes that a socket which was taken over is one of a socket unit.
func (s *sockets) mark(set *socketSet, d socketDocument) {
	for _, sock := range set.sockets {
		if sock.index == d.Index && d.Passed != "" {
			sock.passed = &passedFile{name: d.Passed, file: sock.file, network: set.network, bound: sock.bound}
		}
	}
}

// takeKept returns the socket of that name out of the manager's store, if it
// has that address, or nil.
func (s *sockets) takeKept(name, bound string) *os.File {
	i := slices.IndexFunc(s.passed, func(p *passedFile) bool { return p.name == name && p.bound == bound })
	if i < 0 {
		return nil
	}
	f := s.passed[i].file
	s.passed = slices.Delete(s.passed, i, i+1)
	return f
}

// closePassed closes what was never used.
func (s *Supervisor) closePassed() {
	for _, p := range append(s.sockets.passed, s.kept...) {
		p.file.Close()
	}
	s.sockets.passed, s.kept = nil, nil
}

var errNotJoined = errors.New("no further socket can be bound beside the passed one, so all workers read that one: " +
	"set ReusePort=yes in the socket unit, and let the same user own socket and service")
