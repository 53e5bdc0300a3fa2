package lifeline

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if os.Getenv("LIFELINE_TEST_CHILD") == "1" {
		os.Exit(child())
	}
	os.Exit(m.Run())
}

// child is a worker that greets, and echoes the listener set it is given.
func child() int {
	c, err := Inherit()
	if err != nil {
		fmt.Println(err)
		return 1
	}
	if _, ok := os.LookupEnv(Env); ok {
		fmt.Println("announcement left in the environment")
		return 1
	}
	if err := c.Send(&Message{Kind: KindHello, Hello: &Hello{ProtocolMin: 1, ProtocolMax: 1, PID: os.Getpid()}}); err != nil {
		fmt.Println(err)
		return 1
	}
	m, files, err := c.Recv()
	if err != nil || m.Kind != KindSocket || len(files) != 1 {
		fmt.Println(m, files, err)
		return 1
	}
	if _, err := files[0].WriteString(m.Socket.Address); err != nil {
		fmt.Println(err)
		return 1
	}
	if _, _, err := c.Recv(); !errors.Is(err, io.EOF) {
		fmt.Println("want EOF, got", err)
		return 1
	}
	return 0
}

// connect returns both ends in this process.
func connect(t *testing.T) (*Conn, *Conn) {
	t.Helper()
	a, file, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		t.Fatal(err)
	}
	file.Close()
	t.Setenv(Env, fmt.Sprint(fd))
	b, err := Inherit()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

func TestChildInheritsAndSeesTheEnd(t *testing.T) {
	sup, file, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "LIFELINE_TEST_CHILD=1", fmt.Sprintf("%s=%d", Env, FD))
	cmd.ExtraFiles = []*os.File{file}
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	file.Close()
	m, _, err := sup.Recv()
	if err != nil || m.Kind != KindHello || m.Hello.PID != cmd.Process.Pid {
		t.Fatalf("hello: %+v, %v", m, err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := sup.Send(&Message{Kind: KindSocket, Socket: &Socket{Address: "127.0.0.1:1"}}, w); err != nil {
		t.Fatal(err)
	}
	w.Close()
	got, err := io.ReadAll(io.LimitReader(r, 11))
	if err != nil || string(got) != "127.0.0.1:1" {
		t.Fatalf("through the passed descriptor: %q, %v", got, err)
	}
	sup.Close()
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
}

func TestManyDescriptorsArriveInOrder(t *testing.T) {
	a, b := connect(t)
	const count = 600
	files := make([]*os.File, count)
	var inodes [count]uint64
	for i := range files {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		files[i] = os.NewFile(uintptr(fd), "event")
		defer files[i].Close()
		inodes[i] = uint64(i + 1)
		if _, err := unix.Write(fd, []byte{byte(i), byte(i >> 8), 1, 0, 0, 0, 0, 0}); err != nil {
			t.Fatal(err)
		}
	}
	var sent sync.WaitGroup
	sent.Go(func() {
		if err := a.Send(&Message{Kind: KindReady}, files...); err != nil {
			t.Error(err)
		}
	})
	m, got, err := b.Recv()
	if err != nil || m.Kind != KindReady || len(got) != count {
		t.Fatalf("%+v, %d files, %v", m, len(got), err)
	}
	sent.Wait()
	for i, f := range got {
		var word [8]byte
		if _, err := unix.Read(int(f.Fd()), word[:]); err != nil {
			t.Fatal(err)
		}
		if n := int(word[0]) | int(word[1])<<8; n != i {
			t.Fatalf("descriptor %d came at place %d", n, i)
		}
		flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Fatalf("descriptor %d would be inherited by children", i)
		}
		f.Close()
	}
}

func TestOversizedMessageIsRefusedAndHarmless(t *testing.T) {
	a, b := connect(t)
	long := &Message{Kind: KindFailed, Failed: &Failed{Reason: strings.Repeat("x", maxMessage)}}
	if err := a.Send(long); !errors.Is(err, ErrTooLarge) {
		t.Fatalf("want ErrTooLarge, got %v", err)
	}
	if err := a.Send(&Message{Kind: KindReady}); err != nil {
		t.Fatal(err)
	}
	if m, _, err := b.Recv(); err != nil || m.Kind != KindReady {
		t.Fatalf("%+v, %v", m, err)
	}
}

func TestRubbishIsAnErrorAndItsDescriptorsAreClosed(t *testing.T) {
	a, b := connect(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := a.sendPacket([]byte("{rubbish"), []int{int(w.Fd())}); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if _, _, err := b.Recv(); !errors.Is(err, ErrMalformed) {
		t.Fatalf("want ErrMalformed, got %v", err)
	}
	if n, err := r.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Fatalf("the passed descriptor is still open somewhere: %d, %v", n, err)
	}
}

func TestSendAfterTheOtherEndIsGone(t *testing.T) {
	a, b := connect(t)
	b.Close()
	if err := a.Send(&Message{Kind: KindReady}); err == nil {
		t.Fatal("no error")
	}
	if _, _, err := a.Recv(); !errors.Is(err, io.EOF) {
		t.Fatalf("want EOF, got %v", err)
	}
}

func TestCloseUnblocksRecv(t *testing.T) {
	a, _ := connect(t)
	done := make(chan error, 1)
	go func() {
		_, _, err := a.Recv()
		done <- err
	}()
	a.Close()
	if err := <-done; !errors.Is(err, io.EOF) {
		t.Fatalf("want EOF, got %v", err)
	}
}

func TestStartedByHand(t *testing.T) {
	t.Setenv(Env, "")
	os.Unsetenv(Env)
	if _, err := Inherit(); !errors.Is(err, ErrNoLifeline) {
		t.Fatalf("want ErrNoLifeline, got %v", err)
	}
	for _, number := range []string{"x", "-1", "0", "99999"} {
		t.Setenv(Env, number)
		if _, err := Inherit(); !errors.Is(err, ErrNoLifeline) {
			t.Fatalf("%q: want ErrNoLifeline, got %v", number, err)
		}
	}
}
