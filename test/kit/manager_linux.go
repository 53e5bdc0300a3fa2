package kit

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Manager is a service manager as far as its protocol goes: a real notify
// socket, a descriptor store, and the environment that a service is started
// with. Messages are recorded as they come.
type Manager struct {
	Address string

	t    testing.TB
	conn *net.UnixConn

	mu       sync.Mutex
	messages []Notice
	store    []Stored
}

// Notice is one message of the service.
type Notice struct {
	When   time.Time
	PID    int // of the sender, as the kernel says
	Fields map[string]string
}

// Stored is one descriptor of the store.
type Stored struct {
	Name string
	File *os.File
}

// NewManager makes a manager that lives until the test ends.
func NewManager(t testing.TB) *Manager {
	t.Helper()
	dir, err := os.MkdirTemp("", "hf")
	if err != nil {
		t.Fatal(err)
	}
	m := &Manager{t: t, Address: filepath.Join(dir, "notify")}
	if m.conn, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.Address, Net: "unixgram"}); err != nil {
		t.Fatal(err)
	}
	raw, err := m.conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if controlErr := raw.Control(func(fd uintptr) {
		err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_PASSCRED, 1)
	}); err != nil || controlErr != nil {
		t.Fatal(err, controlErr)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for m.receive() {
		}
	}()
	t.Cleanup(func() {
		m.conn.Close()
		<-done
		for _, s := range m.store {
			s.File.Close()
		}
		os.RemoveAll(dir)
	})
	return m
}

// Env is the environment of a service: watchdog 0 for none, store for how many
// descriptors are kept.
func (m *Manager) Env(watchdog time.Duration, store int) []string {
	env := []string{"NOTIFY_SOCKET=" + m.Address}
	if watchdog > 0 {
		env = append(env, fmt.Sprintf("WATCHDOG_USEC=%d", watchdog.Microseconds()))
	}
	if store > 0 {
		env = append(env, "FDSTORE="+strconv.Itoa(store))
	}
	return env
}

// OwnPID, put before a command line, sets the variables that name the process
// which they are meant for.
var OwnPID = []string{"sh", "-c", `LISTEN_PID=$$ WATCHDOG_PID=$$ SYSTEMD_EXEC_PID=$$ exec "$@"`, "sh"}

// Passing is the environment that goes with descriptors under those names.
func Passing(names ...string) []string {
	return []string{fmt.Sprintf("LISTEN_FDS=%d", len(names)), "LISTEN_FDNAMES=" + strings.Join(names, ":")}
}

func (m *Manager) receive() bool {
	b, oob := make([]byte, 8192), make([]byte, 1024)
	n, on, flags, _, err := m.conn.ReadMsgUnix(b, oob)
	if err != nil {
		if !errors.Is(err, net.ErrClosed) {
			m.t.Errorf("notify socket: %v", err)
		}
		return false
	}
	if flags&(syscall.MSG_TRUNC|syscall.MSG_CTRUNC) != 0 {
		m.t.Errorf("notify socket: message is cut off (flags %#x)", flags)
	}
	notice := Notice{When: time.Now(), Fields: map[string]string{}}
	for line := range strings.Lines(string(b[:n])) {
		name, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		if _, twice := notice.Fields[name]; !ok || twice || name == "" {
			m.t.Errorf("message %q", b[:n])
		}
		notice.Fields[name] = value
	}
	var files []*os.File
	controls, err := syscall.ParseSocketControlMessage(oob[:on])
	if err != nil {
		m.t.Errorf("notify socket: %v", err)
	}
	for i := range controls {
		if fds, err := syscall.ParseUnixRights(&controls[i]); err == nil {
			for _, fd := range fds {
				syscall.CloseOnExec(fd)
				files = append(files, os.NewFile(uintptr(fd), notice.Fields["FDNAME"]))
			}
		}
		if cred, err := syscall.ParseUnixCredentials(&controls[i]); err == nil {
			notice.PID = int(cred.Pid)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.messages = append(m.messages, notice)
	m.keep(notice, files)
	return true
}

// keep is the store: a descriptor that it has already is not taken twice.
func (m *Manager) keep(n Notice, files []*os.File) {
	name := n.Fields["FDNAME"]
	if n.Fields["FDSTOREREMOVE"] == "1" {
		m.store = slices.DeleteFunc(m.store, func(s Stored) bool {
			if s.Name == name {
				s.File.Close()
			}
			return s.Name == name
		})
	}
	for _, f := range files {
		if n.Fields["FDSTORE"] != "1" || slices.ContainsFunc(m.store, func(s Stored) bool { return SameFile(s.File, f) }) {
			f.Close()
			continue
		}
		m.store = append(m.store, Stored{name, f})
	}
}

// SameFile reports whether two descriptors are of the same socket or file.
func SameFile(a, b *os.File) bool {
	infoA, errA := a.Stat()
	infoB, errB := b.Stat()
	return errA == nil && errB == nil && os.SameFile(infoA, infoB)
}

// Messages returns what has been said so far.
func (m *Manager) Messages() []Notice {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.messages)
}

// Store returns what is stored at the moment.
func (m *Manager) Store() []Stored {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.store)
}

// Await returns the first message from number from on for which ok holds, and
// the number of the one after it.
func (m *Manager) Await(within time.Duration, from int, what string, ok func(Notice) bool) (Notice, int) {
	m.t.Helper()
	var found Notice
	next := from
	Eventually(m.t, within, what, func() error {
		all := m.Messages()
		for i := from; i < len(all); i++ {
			if ok(all[i]) {
				found, next = all[i], i+1
				return nil
			}
		}
		return fmt.Errorf("messages: %v", all[min(from, len(all)):])
	})
	return found, next
}

// Has returns a condition: the message has the field with that value.
func Has(name, value string) func(Notice) bool {
	return func(n Notice) bool { return n.Fields[name] == value }
}
