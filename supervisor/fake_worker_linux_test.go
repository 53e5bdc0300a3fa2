package supervisor

import (
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
	close(f.ended)
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
	for {
		m, files, err := f.conn.Recv()
		for _, file := range files {
			file.Close()
		}
		if err != nil {
			return
		}
		if !f.obey(sc, m) {
			return
		}
	}
}

// obey returns false when the process is to end.
func (f *fakeWorker) obey(sc *script, m *lifeline.Message) bool {
	switch m.Kind {
	case lifeline.KindRefuse:
		return false
	case lifeline.KindWelcome:
		f.mu.Lock()
		f.welcome = m.Welcome
		f.mu.Unlock()
		if sc.onWelcome == nil || sc.onWelcome(f) {
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
