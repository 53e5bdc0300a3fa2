package worker

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
	"github.com/holdfast-quic/holdfast/packetqueue"
	"github.com/holdfast-quic/holdfast/shm"
)

// boss is the supervisor of one worker that runs in this process, over a real
// lifeline and with real descriptors.
type boss struct {
	t       *testing.T
	life    *lifeline.Conn
	child   *lifeline.Conn
	segment *shm.Segment
	udp     *os.File
	tcp     *os.File
	bell    *os.File
	config  *os.File
	self    shm.Owner
	welcome lifeline.Welcome

	handover *os.File // nil: the worker ends with its supervisor
	path     string

	got    chan *lifeline.Message
	code   chan int
	worker *Worker
}

func newBoss(t *testing.T) *boss {
	t.Helper()
	g := shm.Geometry{Slots: testSlots, TableEntries: 1 << 10, Lanes: 4, LaneBytes: 256 << 10}
	seg, err := shm.Create(g)
	must(t, err)
	b := &boss{
		t: t, segment: seg, self: shm.Owner{Slot: 2, Incarnation: 5},
		code: make(chan int, 1),
	}
	t.Cleanup(func() { seg.Close() })
	for slot := range testSlots {
		must(t, packetqueue.Format(seg.Queue(shm.SlotID(slot)), g.Lanes, g.LaneBytes))
	}
	seg.Directory().Assign(b.self.Slot, b.self.Incarnation, 1, 1)
	seg.Directory().SetServing(b.self.Slot, true)
	seg.Admission().Store(shm.Choice{Current: 1})

	var end *os.File
	b.life, end, err = lifeline.Pair()
	must(t, err)
	t.Cleanup(func() { b.life.Close() })
	fd, err := dupFD(end)
	must(t, err)
	end.Close()
	t.Setenv(lifeline.Env, strconv.Itoa(fd))
	b.child, err = lifeline.Inherit()
	must(t, err)
	t.Cleanup(func() { b.child.Close() })

	var ln net.Listener
	for ln == nil {
		b.udp = (&service{t: t}).listen("udp4", "127.0.0.1:0")
		ln, err = net.Listen("tcp4", address(t, b.udp, "127.0.0.1"))
		if err != nil && !errors.Is(err, syscall.EADDRINUSE) { // somebody's TCP port, try another
			t.Fatal(err)
		}
	}
	b.tcp, err = ln.(*net.TCPListener).File()
	must(t, err)
	ln.Close()
	t.Cleanup(func() { b.tcp.Close() })
	b.bell, err = packetqueue.NewDoorbell()
	must(t, err)
	t.Cleanup(func() { b.bell.Close() })
	mfd, err := unix.MemfdCreate("config", unix.MFD_CLOEXEC)
	must(t, err)
	b.config = os.NewFile(uintptr(mfd), "config")
	t.Cleanup(func() { b.config.Close() })
	_, err = b.config.WriteString("listeners: []\n")
	must(t, err)

	addr := address(t, b.udp, "127.0.0.1")
	b.welcome = lifeline.Welcome{
		Protocol: 1, Slot: uint16(b.self.Slot), Incarnation: uint32(b.self.Incarnation), Generation: 1,
		ConfigHash: "sha256:0", Workers: 1,
		Listeners: []lifeline.Listener{{ID: 0, Name: "public", QUIC: true, TCP: true}},
		Sockets: []lifeline.Socket{
			{Listener: 0, Network: networkUDP, Address: addr},
			{Listener: 0, Network: networkTCP, Address: addr},
		},
		Keys: lifeline.Keys{
			StatelessReset: make([]byte, 32), Token: make([]byte, 32), Tickets: [][]byte{make([]byte, 32)},
			CID: make([]byte, 16), ServerID: []byte{1},
		},
		Nonces: lifeline.NonceLease{From: 0, To: 1 << 16},
	}
	return b
}

func (b *boss) files() []*os.File {
	files := []*os.File{b.segment.File(), b.config, b.bell, b.udp, b.tcp}
	if b.handover != nil {
		files = append(files, b.handover)
	}
	return files
}

// leaveable gives the worker a handover socket.
func (b *boss) leaveable() {
	b.t.Helper()
	b.path = filepath.Join(b.t.TempDir(), "worker-2.sock")
	var err error
	b.handover, err = lifeline.Listen(b.path)
	must(b.t, err)
	b.t.Cleanup(func() { b.handover.Close() })
	b.welcome.Handover = true
}

// die ends the lifeline, as the death of a supervisor does.
func (b *boss) die() {
	b.life.Close()
	for range b.got {
	}
}

// next connects as the next supervisor and returns how the worker introduces
// itself.
func (b *boss) next() (*lifeline.Resume, []*os.File) {
	b.t.Helper()
	var err error
	b.life, err = lifeline.Dial(b.path)
	must(b.t, err)
	must(b.t, b.life.SetDeadline(time.Now().Add(10*time.Second)))
	m, files, err := b.life.Recv()
	must(b.t, err)
	must(b.t, b.life.SetDeadline(time.Time{}))
	b.t.Cleanup(func() { closeAll(files); b.life.Close() })
	if m.Kind != lifeline.KindResume {
		b.t.Fatalf("got %s", m.Kind)
	}
	if sender, ok := b.life.Sender(); !ok || sender.PID != os.Getpid() {
		b.t.Errorf("sender %+v %v", sender, ok)
	}
	return m.Resume, files
}

// take makes the connection of next the worker's lifeline.
func (b *boss) take() {
	b.t.Helper()
	b.send(&lifeline.Message{Kind: lifeline.KindResumed, Resumed: &lifeline.Resumed{Protocol: lifeline.ProtocolMax}})
	b.listen()
}

// run greets the worker, lets it serve and collects what it says.
func (b *boss) run(serve func(context.Context, *Worker) error) {
	b.t.Helper()
	joined := make(chan error, 1)
	go func() {
		w, err := join(b.child, Options{Version: "1.2.3", BuildID: "x"})
		b.worker = w
		joined <- err
		if err == nil {
			b.code <- w.run(serve, nil)
			b.child.Close()
		}
	}()
	hello, _, err := b.life.Recv()
	must(b.t, err)
	if h := hello.Hello; h == nil || h.Version != "1.2.3" || h.PID != os.Getpid() || h.ABIMajor != shm.ABIMajor {
		b.t.Fatalf("hello is %+v", hello.Hello)
	}
	must(b.t, b.life.Send(&lifeline.Message{Kind: lifeline.KindWelcome, Welcome: &b.welcome}, b.files()...))
	must(b.t, <-joined)
	b.listen()
}

// listen collects what the worker says on the present lifeline.
func (b *boss) listen() {
	life, got := b.life, make(chan *lifeline.Message, 64)
	b.got = got
	go func() {
		for {
			m, _, err := life.Recv()
			if err != nil {
				close(got)
				return
			}
			got <- m
		}
	}()
}

func (b *boss) send(m *lifeline.Message, files ...*os.File) {
	b.t.Helper()
	must(b.t, b.life.Send(m, files...))
}

// expect returns the next message, which is to be of a kind.
func (b *boss) expect(kind lifeline.Kind) *lifeline.Message {
	b.t.Helper()
	select {
	case m := <-b.got:
		if m == nil || m.Kind != kind {
			b.t.Fatalf("got %+v, want %s", m, kind)
		}
		return m
	case <-time.After(5 * time.Second):
		b.t.Fatalf("no %s", kind)
	}
	return nil
}

// exit returns the worker's exit code.
func (b *boss) exit() int {
	b.t.Helper()
	select {
	case code := <-b.code:
		return code
	case <-time.After(10 * time.Second):
		b.t.Fatal("the worker does not end")
	}
	return -1
}

func (b *boss) readers(seq uint64, udp, tcp []int) {
	b.t.Helper()
	b.send(&lifeline.Message{Kind: lifeline.KindReaders, Readers: &lifeline.Readers{
		Seq: seq, UDP: map[uint8][]int{0: udp}, TCP: map[uint8][]int{0: tcp},
	}})
	if m := b.expect(lifeline.KindReadersSet); m.ReadersSet.Seq != seq {
		b.t.Fatalf("acknowledged %d, want %d", m.ReadersSet.Seq, seq)
	}
}
