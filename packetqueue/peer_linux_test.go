package packetqueue

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// roleEnv makes the test binary the other end of a queue: ROLE ARGUMENT…
// The segment is descriptor 3, the doorbell 4.
const roleEnv = "HOLDFAST_QUEUE_ROLE"

const (
	peerChannel = 1
	peerLanes   = 4
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		if err := play(strings.Fields(role)); err != nil {
			fmt.Fprintln(os.Stderr, role+":", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func play(role []string) error {
	region, err := mapShared(3)
	if err != nil {
		return err
	}
	arg := func(i int) int {
		n, convErr := strconv.Atoi(role[i])
		if convErr != nil {
			err = convErr
		}
		return n
	}
	switch role[0] {
	case "die":
		err = errors.Join(playDying(region, step(arg(1))), err)
	case "pairs":
		err = errors.Join(playThroughput(region, arg(1), arg(2)), err)
	case "singles":
		err = errors.Join(playSingles(region, arg(1), time.Duration(arg(2))), err)
	case "latency":
		err = errors.Join(playLatency(region, arg(1)), err)
	case "consume":
		err = errors.Join(playConsumer(region), err)
	default:
		err = errors.New("unknown role")
	}
	return err
}

func mapShared(fd int) ([]byte, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	return unix.Mmap(fd, 0, int(st.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

// shared is a queue in a memfd, with its doorbell.
type shared struct {
	region []byte
	file   *os.File
	bell   *os.File
}

func newShared(tb testing.TB, lanes, laneBytes int) *shared {
	tb.Helper()
	fd, err := unix.MemfdCreate("queue-test", unix.MFD_CLOEXEC)
	if err != nil {
		tb.Fatal(err)
	}
	s := &shared{file: os.NewFile(uintptr(fd), "queue-test")}
	tb.Cleanup(func() { s.file.Close() })
	if err = unix.Ftruncate(fd, int64(Size(lanes, laneBytes))); err == nil {
		s.region, err = mapShared(fd)
	}
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { unix.Munmap(s.region) })
	if err = Format(s.region, lanes, laneBytes); err == nil {
		s.bell, err = NewDoorbell()
	}
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { s.bell.Close() })
	return s
}

// start runs a peer process and waits until it has said that it is there.
func (s *shared) start(tb testing.TB, role string) (*exec.Cmd, io.Writer) {
	tb.Helper()
	exe, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), roleEnv+"="+role)
	cmd.ExtraFiles = []*os.File{s.file, s.bell}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "here\n" {
		tb.Fatalf("%s: said %q, %v", role, line, err)
	}
	return cmd, in
}

// here tells the parent that the peer is set up, and waits for its word to start.
func here() error {
	fmt.Println("here")
	_, err := os.Stdin.Read(make([]byte, 1))
	return err
}

// waiter is a consumer's place to sleep: the doorbell, edge-triggered, in an
// epoll of its own that Go's poller watches, as a worker has it.
type waiter struct {
	file *os.File
	conn syscall.RawConn
}

func newWaiter(tb testing.TB, bell *os.File) *waiter {
	tb.Helper()
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		tb.Fatal(err)
	}
	raw, err := bell.SyscallConn()
	if err != nil {
		tb.Fatal(err)
	}
	if cerr := raw.Control(func(bell uintptr) {
		err = unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, int(bell), &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(bell)})
	}); cerr != nil || err != nil {
		tb.Fatal(cerr, err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		tb.Fatal(err)
	}
	w := &waiter{file: os.NewFile(uintptr(fd), "epoll")}
	if w.conn, err = w.file.SyscallConn(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { w.file.Close() })
	return w
}

// wait sleeps until the doorbell rings; an error when it does not in time.
func (w *waiter) wait(limit time.Duration) error {
	if err := w.file.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	var events [4]unix.EpollEvent
	return w.conn.Read(func(fd uintptr) bool {
		n, err := unix.EpollWait(int(fd), events[:], 0)
		return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
	})
}

func monotonic() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return ts.Nano()
}
