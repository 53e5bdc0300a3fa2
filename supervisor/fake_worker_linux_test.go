package supervisor

import (
	"net"
	"os"
	"slices"
	"sync"
	"syscall"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
	"github.com/holdfast-quic/holdfast/shm"
)

// fakeWorker is a worker process that lives in this one: a goroutine at the
// far end of a real lifeline. What it does is set by its behave function.
type fakeWorker struct {
	pid     int
	command command
	conn    *lifeline.Conn
	welcome *lifeline.Welcome
	files   []*os.File               // of the welcome
	began   uint64                   // start time of the process
	boot    bool                     // ready was said
	hold    chan struct{}            // it stands still until this is closed
	resume  func(m *lifeline.Resume) // how its introduction differs

	mu      sync.Mutex
	readers lifeline.Readers
	drains  []lifeline.Drain
	undrain int
	end     *exit
	ended   chan struct{}
}

// script says how fake workers differ from good ones. Nil means good.
type script struct {
	hello     func(h *lifeline.Hello)
	onStart   func(f *fakeWorker) bool // false: do nothing at all
	onWelcome func(f *fakeWorker) bool // false: never ready
	onReaders func(f *fakeWorker) bool // false: never acknowledge
	onDrain   func(f *fakeWorker)
	onStop    func(f *fakeWorker)
	conns     []lifeline.ConnInfo
	mute      bool // never answers questions
}

func (f *fakeWorker) PID() int { return f.pid }
func (f *fakeWorker) Ended()   { <-f.ended }
func (f *fakeWorker) Close()   {}

func (f *fakeWorker) Reap() exit {
	f.mu.Lock()
	defer f.mu.Unlock()
	return *f.end
}

func (f *fakeWorker) Signal(sig syscall.Signal) error {
	if sig == syscall.SIGKILL {
		f.exit(exit{status: -1, signal: sig, known: true})
	}
	return nil
}

// exit ends the process, once.
func (f *fakeWorker) exit(e exit) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.end != nil {
		return
	}
	f.end = &e
	f.conn.Close()
	for _, file := range f.files {
		file.Close()
	}
	close(f.ended)
}

func (f *fakeWorker) drained() []lifeline.Drain {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.drains
}

func (f *fakeWorker) udp(listener uint8) []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.readers.UDP[listener]
}

func (f *fakeWorker) tcp(listener uint8) []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.readers.TCP[listener]
}

func (f *fakeWorker) send(m *lifeline.Message) { _ = f.conn.Send(m) }

func (f *fakeWorker) run(sc *script) {
	defer f.exit(exit{known: true})
	if sc.onStart != nil && !sc.onStart(f) {
		<-f.ended
		return
	}
	hello := &lifeline.Hello{
		ProtocolMin: lifeline.ProtocolMin, ProtocolMax: lifeline.ProtocolMax,
		ABIMajor: shm.ABIMajor, ABIMinor: shm.ABIMinor, Version: "v", BuildID: "b", PID: f.pid,
	}
	if sc.hello != nil {
		sc.hello(hello)
	}
	f.send(&lifeline.Message{Kind: lifeline.KindHello, Hello: hello})
	for f.follow(sc) && f.orphan() {
	}
}

// follow does what the supervisor says and returns true when it is gone.
func (f *fakeWorker) follow(sc *script) bool {
	for {
		m, files, err := f.conn.Recv()
		if err != nil {
			return true
		}
		if m.Kind == lifeline.KindWelcome && m.Welcome.Handover {
			// It keeps what it gives to its next supervisor, but the others'
			// doorbells.
			const fixed = 3
			peers := fixed + len(m.Welcome.Peers)
			f.files = slices.Concat(files[:fixed], files[peers:])
			files = files[fixed:peers]
		}
		for _, file := range files {
			file.Close()
		}
		if !f.obey(sc, m) {
			return false
		}
	}
}

// orphan waits for the next supervisor and returns true once there is one.
func (f *fakeWorker) orphan() bool {
	f.mu.Lock()
	gone := f.end != nil || f.welcome == nil || !f.welcome.Handover
	f.mu.Unlock()
	if gone {
		return false
	}
	conn := f.accept(f.files[len(f.files)-1])
	if conn == nil {
		return false
	}
	f.mu.Lock()
	if f.end != nil {
		f.mu.Unlock()
		conn.Close()
		return false
	}
	f.conn.Close()
	f.conn = conn
	w := f.welcome
	m := &lifeline.Resume{
		ProtocolMin: lifeline.ProtocolMin, ProtocolMax: lifeline.ProtocolMax, ABIMajor: shm.ABIMajor, ABIMinor: shm.ABIMinor,
		Version: "v", BuildID: "b", PID: f.pid, Slot: w.Slot, Incarnation: w.Incarnation, Generation: w.Generation, ConfigHash: w.ConfigHash,
		Ready: f.boot, Draining: len(f.drains) > 0, ReadersSeq: f.readers.Seq, Sockets: w.Sockets,
	}
	hold, resume := f.hold, f.resume
	f.mu.Unlock()
	if resume != nil {
		resume(m)
	}
	if hold != nil {
		select {
		case <-hold:
		case <-f.ended:
			return false
		}
	}
	image, err := os.Open(running)
	if err != nil {
		return false
	}
	defer image.Close()
	handover := f.files[len(f.files)-1]
	files := append([]*os.File{f.files[0], f.files[1], f.files[2], handover, image}, f.files[3:len(f.files)-1]...)
	// Who hung up meanwhile is seen by the receiver.
	_ = conn.Send(&lifeline.Message{Kind: lifeline.KindResume, Resume: m}, files...)
	return true
}

// accept waits for a connection, or returns nil when the process has ended.
func (f *fakeWorker) accept(socket *os.File) *lifeline.Conn {
	l, err := net.FileListener(socket)
	if err != nil {
		return nil
	}
	defer l.Close()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-f.ended:
			l.Close()
		case <-stop:
		}
	}()
	c, err := l.Accept()
	if err != nil {
		return nil
	}
	defer c.Close()
	end, err := c.(*net.UnixConn).File()
	if err != nil {
		return nil
	}
	defer end.Close()
	conn, err := inherit(end)
	if err != nil {
		return nil
	}
	return conn
}

// obey returns false when the process is to end.
func (f *fakeWorker) obey(sc *script, m *lifeline.Message) bool {
	switch m.Kind {
	case lifeline.KindRefuse:
		return f.boot // one that serves does not mind
	case lifeline.KindWelcome:
		f.mu.Lock()
		f.welcome = m.Welcome
		f.mu.Unlock()
		if sc.onWelcome == nil || sc.onWelcome(f) {
			f.mu.Lock()
			f.boot = true
			f.mu.Unlock()
			f.send(&lifeline.Message{Kind: lifeline.KindReady})
		}
	case lifeline.KindReaders:
		f.mu.Lock()
		f.readers = *m.Readers
		f.mu.Unlock()
		if sc.onReaders == nil || sc.onReaders(f) {
			f.send(&lifeline.Message{Kind: lifeline.KindReadersSet, ReadersSet: &lifeline.ReadersSet{Seq: m.Readers.Seq}})
		}
	case lifeline.KindPeer:
		f.send(&lifeline.Message{Kind: lifeline.KindPeerSet, Peer: m.Peer})
	case lifeline.KindDrain:
		f.mu.Lock()
		f.drains = append(f.drains, *m.Drain)
		f.mu.Unlock()
		if sc.onDrain == nil {
			return false // idle at once
		}
		sc.onDrain(f)
	case lifeline.KindUndrain:
		f.mu.Lock()
		f.undrain++
		f.mu.Unlock()
	case lifeline.KindStop:
		if sc.onStop == nil {
			return false
		}
		sc.onStop(f)
	case lifeline.KindConnsQuery:
		if !sc.mute {
			f.send(&lifeline.Message{Kind: lifeline.KindConnsReply, ConnsReply: &lifeline.ConnsReply{Seq: m.ConnsQuery.Seq, Conns: sc.conns, Last: true}})
		}
	case lifeline.KindCloseConn:
		if sc.mute {
			break
		}
		f.send(&lifeline.Message{Kind: lifeline.KindConnsReply, ConnsReply: &lifeline.ConnsReply{Seq: m.CloseConn.Seq, Last: true}})
	}
	return true
}
