package test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-quic/holdfast/test/kit"
)

// stranger is a user that has nothing to do with any instance.
const stranger = 4711

// asStranger runs f on a thread that is another user's, for the kernel as for
// whom it connects to.
func asStranger(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for ever: the thread ends with its rights
		_, _, _ = unix.RawSyscall(unix.SYS_SETRESUID, stranger, stranger, stranger)
		f()
	}()
	<-done
}

// knock connects, sends something and returns what came back.
func knock(network, path string, junk []byte) (answer []byte, files int, err error) {
	c, err := net.DialUnix(network, nil, &net.UnixAddr{Name: path, Net: network})
	if err != nil {
		return nil, 0, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return nil, 0, err
	}
	_, _ = c.Write(junk) // it may have hung up already
	buf, oob := make([]byte, 256<<10), make([]byte, 8<<10)
	n, oobn, _, _, err := c.ReadMsgUnix(buf, oob)
	if messages, parseErr := unix.ParseSocketControlMessage(oob[:max(oobn, 0)]); parseErr == nil {
		for i := range messages {
			if fds, err := unix.ParseUnixRights(&messages[i]); err == nil {
				files += len(fds)
				for _, fd := range fds {
					unix.Close(fd)
				}
			}
		}
	}
	return buf[:max(n, 0)], files, err
}

// open takes the protection of the file modes away, which leaves the
// credentials.
func open(t *testing.T, in *kit.Instance, paths ...string) {
	t.Helper()
	for path, mode := range map[string]os.FileMode{in.Dir: 0o755, in.RuntimeDir: 0o755} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range paths {
		if err := os.Chmod(path, 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

// junk is what a client should not send.
func junk(t *testing.T) [][]byte {
	t.Helper()
	noise := make([]byte, 64<<10)
	if _, err := rand.Read(noise); err != nil {
		t.Fatal(err)
	}
	return [][]byte{
		nil,
		{0},
		noise[:1], noise[:1000], noise,
		[]byte("GET / HTTP/1.1\r\n\r\n"), []byte("POST /v1/reload HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n"),
		[]byte("POST /v1/stop HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n{{{{{"),
		[]byte(`{"kind":"resumed"}`), []byte(`{"kind":"refuse"}`), []byte(`{"kind":"stop","stop":{"grace":0}}`), []byte(`{"kind":`),
		[]byte(strings.Repeat("[", 60<<10)),
	}
}

// C143: another user can't use the control socket nor those by which workers
// are handed over, by file mode and, without that, by who it is; the log tells.
// Junk of those who may is answered or not, and harms nothing.
func TestStrangersAreRefused(t *testing.T) {
	needRoot(t)
	in := kit.Start(t, kit.Options{})
	fleet := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 10})
	adminSocket := filepath.Join(in.RuntimeDir, "admin.sock")
	handovers, err := filepath.Glob(filepath.Join(in.RuntimeDir, "worker-*.sock"))
	if err != nil || len(handovers) != 2 {
		t.Fatalf("handover sockets %v, %v", handovers, err)
	}
	all := append([]string{adminSocket}, handovers...)
	for _, path := range all {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", path, info, err)
		}
		network := "unixpacket"
		if path == adminSocket {
			network = "unix"
		}
		asStranger(func() { _, _, err = knock(network, path, nil) })
		if !errors.Is(err, os.ErrPermission) {
			t.Errorf("%s: connecting gives %v", path, err)
		}
	}
	open(t, in, all...)
	asStranger(func() {
		_, err = os.Stat(adminSocket)
		for range 20 {
			if answer, _, _ := knock("unix", adminSocket, []byte("POST /v1/reload HTTP/1.1\r\nHost: a\r\n\r\n")); len(answer) > 0 {
				t.Errorf("a stranger is answered %q", answer)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	awaitLog(t, in, "another user was refused at the admin socket", fmt.Sprintf(`"uid":%d`, stranger))
	if n := strings.Count(in.Log(), "another user was refused"); n > 10 {
		t.Errorf("%d lines for 20 attempts", n)
	}
	if in.Current() != 1 {
		t.Errorf("generation %d is current", in.Current())
	}
	for _, j := range junk(t) {
		_, _, _ = knock("unix", adminSocket, j)
	}
	in.Reload()

	// The supervisor is killed, and before the next one comes, others do.
	workers := in.WorkerPIDs(in.Current())
	in.Signal(syscall.SIGKILL)
	<-in.Exited()
	handovers, _ = filepath.Glob(filepath.Join(in.RuntimeDir, "worker-*.sock"))
	open(t, in, handovers...)
	asStranger(func() {
		for _, path := range handovers {
			if answer, files, _ := knock("unixpacket", path, []byte(`{"kind":"resumed","resumed":{"protocol":2}}`)); len(answer) > 0 || files > 0 {
				t.Errorf("%s: a stranger gets %d bytes and %d descriptors", path, len(answer), files)
			}
		}
	})
	awaitLog(t, in, "a supervisor was not taken", fmt.Sprintf("runs as user %d", stranger))
	for _, path := range handovers {
		for _, j := range junk(t)[:8] {
			_, _, _ = knock("unixpacket", path, j)
		}
	}
	in.Restart()
	for _, pid := range workers {
		if !kit.Alive(pid) {
			t.Errorf("worker %d has ended", pid)
		}
	}
	in.AwaitStatus(10*time.Second, "the same workers", func(s kit.Status) error {
		g, _ := s.Current()
		for _, w := range g.Workers {
			if w.Restarts != 0 || w.Phase != "serving" {
				return fmt.Errorf("worker %+v", w)
			}
		}
		return nil
	})
	in.Reload()
	fleet.Stop().MustBeClean(t)
}

// awaitLog waits for a line of the log that has all those words.
func awaitLog(t *testing.T, in *kit.Instance, words ...string) {
	t.Helper()
	kit.Eventually(t, 10*time.Second, fmt.Sprintf("a line of the log with %q", words), func() error {
	lines:
		for line := range strings.Lines(in.Log()) {
			for _, w := range words {
				if !strings.Contains(line, w) {
					continue lines
				}
			}
			return nil
		}
		return io.EOF
	})
}
