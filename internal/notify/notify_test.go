package notify_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/internal/notify"
)

// manager is the other end: a real notify socket.
type manager struct {
	t    *testing.T
	conn *net.UnixConn
}

func newManager(t *testing.T, address string) *manager {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: address, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &manager{t, conn}
}

// next returns the next message and the descriptors that came with it.
func (m *manager) next() (string, []int) {
	m.t.Helper()
	b, oob := make([]byte, 4096), make([]byte, 256)
	if err := m.conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		m.t.Fatal(err)
	}
	n, on, _, _, err := m.conn.ReadMsgUnix(b, oob)
	if err != nil {
		m.t.Fatal(err)
	}
	var fds []int
	messages, err := syscall.ParseSocketControlMessage(oob[:on])
	if err != nil {
		m.t.Fatal(err)
	}
	for i := range messages {
		got, err := syscall.ParseUnixRights(&messages[i])
		if err != nil {
			m.t.Fatal(err)
		}
		fds = append(fds, got...)
	}
	return string(b[:n]), fds
}

func addresses(t *testing.T) map[string]string {
	t.Helper()
	return map[string]string{
		"path":     filepath.Join(t.TempDir(), "notify"),
		"abstract": fmt.Sprintf("@holdfast-notify-test-%d-%d", os.Getpid(), time.Now().UnixNano()),
	}
}

// Messages arrive whole and in order, descriptors with theirs.
func TestSend(t *testing.T) {
	for kind, address := range addresses(t) {
		t.Run(kind, func(t *testing.T) {
			m := newManager(t, address)
			s := notify.NewSender(address, func(err error) { t.Error(err) })
			s.Send(notify.Reloading(1_234_567_890), notify.Status("one\ntwo"))
			f, err := os.CreateTemp(t.TempDir(), "")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteString("stored"); err != nil {
				t.Fatal(err)
			}
			s.SendFile(f, notify.Store("socket.1.udp.0"))
			for i := range 200 {
				s.Send(fmt.Sprintf("X_N=%d", i))
			}
			if got, _ := m.next(); got != "RELOADING=1\nMONOTONIC_USEC=1234567\nSTATUS=one two" {
				t.Errorf("message %q", got)
			}
			got, fds := m.next()
			if got != "FDSTORE=1\nFDPOLL=0\nFDNAME=socket.1.udp.0" || len(fds) != 1 {
				t.Fatalf("message %q with %d descriptors", got, len(fds))
			}
			kept := os.NewFile(uintptr(fds[0]), "kept")
			defer kept.Close()
			f.Close()
			b := make([]byte, 16)
			if n, _ := kept.ReadAt(b, 0); string(b[:n]) != "stored" {
				t.Errorf("the descriptor shows %q", b[:n])
			}
			for i := range 200 {
				if got, _ := m.next(); got != fmt.Sprintf("X_N=%d", i) {
					t.Fatalf("message %q in place %d", got, i)
				}
			}
			s.Flush(5 * time.Second)
			if s.Behind() {
				t.Error("still behind")
			}
		})
	}
}

// A manager that is not there is reported once; when it is back it is told
// again.
func TestManagerIsGone(t *testing.T) {
	address := filepath.Join(t.TempDir(), "notify")
	var failures []error
	s := notify.NewSender(address, func(err error) { failures = append(failures, err) })
	for range 3 {
		s.Send(notify.Ready)
		s.Flush(5 * time.Second)
	}
	if len(failures) != 1 || !errors.Is(failures[0], syscall.ENOENT) {
		t.Errorf("failures %v", failures)
	}
	m := newManager(t, address)
	s.Send(notify.Ready)
	if got, _ := m.next(); got != notify.Ready {
		t.Errorf("message %q", got)
	}
}

// A manager that reads nothing holds nobody up.
func TestManagerDoesNotRead(t *testing.T) {
	address := filepath.Join(t.TempDir(), "notify")
	newManager(t, address)
	failed := make(chan error, 10)
	s := notify.NewSender(address, func(err error) { failed <- err })
	begun := time.Now()
	for range 10_000 {
		s.Send(notify.Watchdog)
	}
	if took := time.Since(begun); took > 2*time.Second {
		t.Errorf("sending took %v", took)
	}
	if !s.Behind() {
		t.Error("not behind")
	}
	if err := <-failed; !strings.Contains(err.Error(), "does not read") {
		t.Errorf("failure %v", err)
	}
	begun = time.Now()
	s.Flush(50 * time.Millisecond)
	if took := time.Since(begun); took > 2*time.Second {
		t.Errorf("flushing took %v", took)
	}
}

// A descriptor that is closed before its turn is no failure, and is not sent
// as another one.
func TestClosedDescriptor(t *testing.T) {
	address := filepath.Join(t.TempDir(), "notify")
	m := newManager(t, address)
	s := notify.NewSender(address, func(err error) { t.Error(err) })
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	s.SendFile(f, notify.Store("gone"))
	s.Send(notify.Ready)
	if got, fds := m.next(); got != notify.Ready || len(fds) != 0 {
		t.Errorf("message %q with %d descriptors", got, len(fds))
	}
}

func TestNobodyToTell(*testing.T) {
	var s *notify.Sender
	s.Send(notify.Ready)
	s.SendFile(nil, notify.Store("x"))
	s.Flush(time.Second)
	_ = s.Behind()
}

func TestFromEnviron(t *testing.T) {
	const pid = 42
	long := "/" + strings.Repeat("x", 107)
	for _, tt := range []struct {
		name string
		env  map[string]string
		want notify.Environment
		err  string
	}{
		{name: "nobody"},
		{name: "nobody, though a watchdog", env: map[string]string{"WATCHDOG_USEC": "1"}},
		{
			name: "all", env: map[string]string{
				"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "42", "FDSTORE": "12", "SYSTEMD_EXEC_PID": "42",
			},
			want: notify.Environment{Socket: "@x", Watchdog: 3 * time.Second, Store: 12},
		},
		// C140: what was meant for another process.
		{
			name: "watchdog of another process", env: map[string]string{"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "41"},
			want: notify.Environment{Socket: "/x"},
		},
		{
			name: "watchdog for whom it concerns", env: map[string]string{"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "3000000"},
			want: notify.Environment{Socket: "/x", Watchdog: 3 * time.Second},
		},
		{
			name: "started by a wrapper", env: map[string]string{"NOTIFY_SOCKET": "/x", "SYSTEMD_EXEC_PID": "7"},
			want: notify.Environment{Socket: "/x", Wrapped: true},
		},
		{
			name: "no time", env: map[string]string{"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "soon"},
			want: notify.Environment{Socket: "/x"}, err: "WATCHDOG_USEC",
		},
		{
			name: "no positive time", env: map[string]string{"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "0"},
			want: notify.Environment{Socket: "/x"}, err: "WATCHDOG_USEC",
		},
		{name: "relative", env: map[string]string{"NOTIFY_SOCKET": "x"}, err: "neither"},
		{name: "only a slash", env: map[string]string{"NOTIFY_SOCKET": "/"}, err: "neither"},
		{name: "too long", env: map[string]string{"NOTIFY_SOCKET": long}, err: "108 bytes"},
		{name: "virtual machine", env: map[string]string{"NOTIFY_SOCKET": "vsock:2:1"}, err: "virtual machine"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := notify.FromEnviron(func(name string) string { return tt.env[name] }, pid)
			if got != tt.want {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
			if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v, want one about %q", err, tt.err)
			}
		})
	}
}

func TestValidName(t *testing.T) {
	for name, want := range map[string]bool{
		"segment": true, "socket.63.udp.100": true, strings.Repeat("x", 255): true,
		"": false, "a:b": false, "a b": false, "a\nb": false, "ä": false, strings.Repeat("x", 256): false,
	} {
		if got := notify.ValidName(name); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}

func TestStatusIsOneLine(t *testing.T) {
	for in, want := range map[string]string{
		"plain": "STATUS=plain", "a\nREADY=1": "STATUS=a READY=1", "nul\x00": "STATUS=nul ", "bad\xff": "STATUS=bad?",
	} {
		if got := notify.Status(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}
