package supervisor

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"go.uber.org/zap"

	"github.com/holdfast-quic/holdfast/internal/notify"
)

// fdStore is what the service manager keeps of ours, so that it survives both
// the supervisor and the workers. It belongs to the loop.
type fdStore struct {
	content map[string]storedFile
	full    bool // said so
}

// storedFile is a descriptor in the store. What it is can be told when ours of
// it is closed, too.
type storedFile struct {
	file *os.File
	info os.FileInfo // nil when it can't be had
}

func (o storedFile) is(f *os.File) bool {
	if o.file == f {
		return true
	}
	info, err := f.Stat()
	return err == nil && o.info != nil && os.SameFile(o.info, info)
}

// has notes what the manager has: what it has given back, or was sent.
func (st *fdStore) has(name string, f *os.File) {
	if st.content == nil {
		st.content = map[string]storedFile{}
	}
	info, err := f.Stat()
	if err != nil {
		info = nil
	}
	st.content[name] = storedFile{f, info}
}

// syncStore makes the manager's store what is worth to be kept: the listening
// sockets with what is queued in them, and the segment. Sockets of a socket
// unit the manager has anyway. A stop leaves the store alone: the manager
// empties it when the service has ended for good, and a restart finds it.
func (s *Supervisor) syncStore() {
	if s.notify.out == nil || s.notify.env.Store == 0 || s.current == nil || s.stopping != stopNone || !s.sockets.settled {
		return
	}
	wanted := map[string]*os.File{nameSegment: s.seg.File()}
	order := []string{nameSegment}
	for _, l := range s.sockets.all() {
		for _, set := range l.sets {
			for _, sock := range set.sockets {
				if sock.passed == nil || sock.passed.kept() {
					wanted[nameSocket(sock.key())] = sock.file
					order = append(order, nameSocket(sock.key()))
				}
			}
		}
	}
	for name, stored := range s.store.content {
		if w := wanted[name]; w == nil || !stored.is(w) {
			s.notify.out.Send(notify.Unstore(name))
			delete(s.store.content, name)
		}
	}
	for _, name := range order {
		if _, there := s.store.content[name]; there {
			continue
		}
		if len(s.store.content) >= s.notify.env.Store {
			if !s.store.full {
				s.store.full = true
				s.log.Warn("the service manager keeps fewer descriptors than there are", zap.Int("kept", s.notify.env.Store),
					zap.Int("wanted", len(wanted)), zap.String("hint", fmt.Sprintf("FileDescriptorStoreMax=%d", len(wanted))))
			}
			return
		}
		s.notify.out.SendFile(wanted[name], notify.Store(name))
		s.store.has(name, wanted[name])
	}
}

// storable reports whether a descriptor of that name is one that outlives the
// supervisor in the manager's store.
func storable(name string) bool {
	if name == nameSegment {
		return true
	}
	kind, rest, _ := strings.Cut(name, ".")
	switch kind {
	case "socket":
		f := strings.Split(rest, ".")
		return len(f) == 3 && isNumber(f[0]) && (f[1] == networkUDP || f[1] == networkTCP) && isNumber(f[2])
	case "payload", "image":
		return isNumber(rest)
	}
	return false
}

func isNumber(text string) bool {
	_, err := strconv.ParseUint(text, 10, 32)
	return err == nil
}
