package worker

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"go.uber.org/zap/zapcore"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
	"github.com/holdfast-quic/holdfast/packetqueue"
	"github.com/holdfast-quic/holdfast/shm"
)

// echoServer serves QUIC and TCP until the worker is idle or stops.
func echoServer(_ context.Context, w *Worker) error {
	tr, err := w.QUIC("public")
	if err != nil {
		return err
	}
	cert, err := serverCert()
	if err != nil {
		return err
	}
	conf := clientTLS()
	conf.Certificates = append(conf.Certificates, cert)
	conf.SetSessionTicketKeys(w.TicketKeys())
	ln, err := tr.ListenEarly(conf, nil)
	if err != nil {
		return err
	}
	go func() {
		for {
			c, err := ln.Accept(context.Background())
			if err != nil {
				return
			}
			entry := ConnFromContext(c.Context())
			entry.SetProtocol("echo")
			entry.SetCloser(func() { _ = c.CloseWithError(0, "bye") })
			go echoConn(c)
		}
	}()
	tcp, err := w.TCP("public")
	if err != nil {
		return err
	}
	go func() {
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			ConnFromNetConn(c).SetProtocol("raw")
			go func() {
				_, _ = io.Copy(c, c)
				c.Close()
			}()
		}
	}()
	if err := w.Ready(); err != nil {
		return err
	}
	select {
	case <-w.Idle():
	case <-w.Stopping():
	}
	return nil
}

func TestWorkerFromHelloToDrained(t *testing.T) {
	b := newBoss(t)
	b.run(echoServer)
	b.expect(lifeline.KindReady)
	d := b.segment.Directory()
	if p := d.Record(b.self.Slot).Phase; p != shm.PhaseServing {
		t.Errorf("phase %v", p)
	}
	if got := b.worker.Listeners(); len(got) != 1 || got[0].Name != "public" || len(got[0].Addresses) != 1 {
		t.Errorf("listeners %+v", got)
	}
	if string(b.worker.Config()) != "listeners: []\n" || b.worker.ConfigHash() != "sha256:0" {
		t.Errorf("configuration %q %q", b.worker.Config(), b.worker.ConfigHash())
	}
	if _, err := b.worker.QUIC("none"); !errors.Is(err, ErrNoListener) {
		t.Errorf("unknown listener: %v", err)
	}
	b.readers(1, []int{0}, []int{0})

	addr := address(t, b.udp, "127.0.0.1")
	c := (&service{t: t}).dial("udp4", "", addr)
	c.ping(1000)
	tcp, err := net.Dial("tcp4", addr)
	must(t, err)
	defer tcp.Close()
	_, err = tcp.Write([]byte("x"))
	must(t, err)
	_, err = io.ReadFull(tcp, make([]byte, 1))
	must(t, err)

	if r := d.Record(b.self.Slot); r.QUICConns != 1 || r.TCPConns != 1 {
		t.Errorf("gauges %d and %d", r.QUICConns, r.TCPConns)
	}
	b.send(&lifeline.Message{Kind: lifeline.KindConnsQuery, ConnsQuery: &lifeline.ConnsQuery{Seq: 7}})
	reply := b.expect(lifeline.KindConnsReply).ConnsReply
	if reply.Seq != 7 || !reply.Last || len(reply.Conns) != 2 {
		t.Fatalf("reply %+v", reply)
	}
	for i, want := range []lifeline.ConnInfo{
		{ID: "2.5.1", Kind: "quic", Protocol: "echo", Listener: "public", Local: addr},
		{ID: "2.5.2", Kind: "tcp", Protocol: "raw", Listener: "public", Local: addr, Remote: tcp.LocalAddr().String()},
	} {
		got := reply.Conns[i]
		got.Since = time.Time{}
		if i == 0 {
			got.Remote = ""
		}
		if got != want {
			t.Errorf("connection %+v, want %+v", got, want)
		}
	}
	b.send(&lifeline.Message{Kind: lifeline.KindCloseConn, CloseConn: &lifeline.CloseConn{Seq: 8, ID: "2.5.2"}})
	if r := b.expect(lifeline.KindConnsReply).ConnsReply; r.Seq != 8 || r.Error != "" {
		t.Errorf("close: %+v", r)
	}
	if _, err := tcp.Read(make([]byte, 1)); err == nil {
		t.Error("the TCP connection is not closed")
	}
	b.send(&lifeline.Message{Kind: lifeline.KindCloseConn, CloseConn: &lifeline.CloseConn{Seq: 9, ID: "2.5.99"}})
	if r := b.expect(lifeline.KindConnsReply).ConnsReply; !strings.Contains(r.Error, ErrNoConn.Error()) {
		t.Errorf("close of no connection: %+v", r)
	}

	bell, err := packetqueue.NewDoorbell()
	must(t, err)
	defer bell.Close()
	b.send(&lifeline.Message{Kind: lifeline.KindPeer, Peer: &lifeline.Peer{Slot: 1}}, bell)
	if p := b.expect(lifeline.KindPeerSet).Peer; p.Slot != 1 || !b.worker.node.bells.has(1) {
		t.Errorf("peer %+v", p)
	}

	b.readers(2, []int{0}, nil) // nobody else is there to read
	b.send(&lifeline.Message{Kind: lifeline.KindDrain, Drain: &lifeline.Drain{Mode: DrainGoAway, Window: time.Second}})
	if o := <-b.worker.DrainOrders(); o.Mode != DrainGoAway || o.Window != time.Second {
		t.Errorf("order %+v", o)
	}
	<-b.worker.Draining()
	select {
	case <-b.worker.Idle():
		t.Error("idle with a connection")
	default:
	}
	c.close()
	b.expect(lifeline.KindDrained)
	if code := b.exit(); code != exitDone {
		t.Errorf("exit code %d", code)
	}
	if r := d.Record(b.self.Slot); r.Phase != shm.PhaseDone || r.QUICConns != 0 || r.TCPConns != 0 {
		t.Errorf("record %+v", r)
	}
	for _, err := range b.segment.Check() {
		t.Error(err)
	}
}

// A draining worker accepts no TCP connection; it waits for a worker that does.
func TestTCPIsAcceptedByWhomTheReadersName(t *testing.T) {
	b := newBoss(t)
	b.run(echoServer)
	b.expect(lifeline.KindReady)
	tcp, err := net.Dial("tcp4", address(t, b.udp, "127.0.0.1"))
	must(t, err)
	defer tcp.Close()
	_, err = tcp.Write([]byte("x"))
	must(t, err)
	b.readers(1, nil, nil)
	if _, n := b.worker.registry.counts(); n != 0 {
		t.Fatal("accepted without leave")
	}
	b.readers(2, nil, []int{0})
	must(t, tcp.SetReadDeadline(time.Now().Add(5*time.Second)))
	_, err = io.ReadFull(tcp, make([]byte, 1))
	must(t, err)
	b.send(&lifeline.Message{Kind: lifeline.KindStop, Stop: &lifeline.Stop{Grace: time.Minute}})
	b.expect(lifeline.KindDrained)
	if code := b.exit(); code != exitDone {
		t.Errorf("exit code %d", code)
	}
	// The listening socket is as it was.
	again, err := net.Dial("tcp4", address(t, b.udp, "127.0.0.1"))
	must(t, err)
	again.Close()
}

// A worker that drains may end with the connection that it is told to end, so
// the answer has to be out before.
func TestEndOfAConnectionIsAnsweredFirst(t *testing.T) {
	b := newBoss(t)
	answered, ended := make(chan struct{}), make(chan struct{})
	end := sync.OnceFunc(func() {
		<-answered
		close(ended)
	})
	b.run(func(_ context.Context, w *Worker) error {
		w.registry.add(kindTCP, "public", &net.TCPAddr{}, &net.TCPAddr{}).SetCloser(end)
		err := w.Ready()
		<-ended
		return err
	})
	b.expect(lifeline.KindReady)
	b.send(&lifeline.Message{Kind: lifeline.KindCloseConn, CloseConn: &lifeline.CloseConn{Seq: 8, ID: "2.5.1"}})
	if r := b.expect(lifeline.KindConnsReply).ConnsReply; r.Seq != 8 || !r.Last || r.Error != "" {
		t.Errorf("answer %+v", r)
	}
	close(answered)
	<-ended
}

// A program that does not return in time is left behind, after its
// connections have been ended for it.
func TestStopOfAProgramThatHangs(t *testing.T) {
	b := newBoss(t)
	hang := make(chan struct{})
	defer close(hang)
	var ended atomic.Bool
	b.run(func(ctx context.Context, w *Worker) error {
		w.registry.add(kindTCP, "public", &net.TCPAddr{}, &net.TCPAddr{}).SetCloser(func() { ended.Store(true) })
		_ = w.Ready()
		<-hang
		return nil
	})
	b.expect(lifeline.KindReady)
	b.send(&lifeline.Message{Kind: lifeline.KindStop, Stop: &lifeline.Stop{Grace: time.Hour}})
	<-b.worker.Stopping()
	b.send(&lifeline.Message{Kind: lifeline.KindStop, Stop: &lifeline.Stop{Grace: 10 * time.Millisecond}})
	b.expect(lifeline.KindDrained)
	if code := b.exit(); code != exitDone || !ended.Load() {
		t.Errorf("exit code %d, connection ended: %v", code, ended.Load())
	}
}

func TestSupervisorGone(t *testing.T) {
	b := newBoss(t)
	b.run(echoServer)
	b.expect(lifeline.KindReady)
	b.life.Close()
	<-b.worker.Stopping()
	if g := b.worker.Grace(); g > orphanGrace {
		t.Errorf("grace %v", g)
	}
	if code := b.exit(); code != exitDone {
		t.Errorf("exit code %d", code)
	}
}

func TestProgramFails(t *testing.T) {
	for _, tt := range []struct {
		name   string
		serve  func(context.Context, *Worker) error
		reason string
	}{
		{"error", func(context.Context, *Worker) error { return errors.New("no certificate") }, "no certificate"},
		{"panic", func(context.Context, *Worker) error { panic("boom") }, "boom"},
		{"returns", func(context.Context, *Worker) error { return nil }, ErrReturned.Error()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBoss(t)
			b.run(tt.serve)
			if m := b.expect(lifeline.KindFailed); !strings.Contains(m.Failed.Reason, tt.reason) {
				t.Errorf("reason %q", m.Failed.Reason)
			}
			if code := b.exit(); code != exitFailed {
				t.Errorf("exit code %d", code)
			}
		})
	}
}

func TestNoncesAreAskedFor(t *testing.T) {
	b := newBoss(t)
	b.welcome.Nonces = lifeline.NonceLease{From: 0, To: 8}
	b.run(echoServer)
	b.expect(lifeline.KindReady)
	var ids []quic.ConnectionID
	next := func() {
		id, err := b.worker.cids.GenerateConnectionID()
		must(t, err)
		if slices.Contains(ids, id) {
			t.Fatal("an ID came twice")
		}
		ids = append(ids, id)
	}
	for range 6 {
		next()
	}
	b.expect(lifeline.KindNonceRequest)
	b.send(&lifeline.Message{Kind: lifeline.KindNonceLease, NonceLease: &lifeline.NonceLease{From: 100, To: 200}})
	for range 20 {
		next()
	}
	b.send(&lifeline.Message{Kind: lifeline.KindStop, Stop: &lifeline.Stop{}})
	b.exit()
}

// join refuses what it cannot work with, and says what was wrong.
func TestJoinFails(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(b *boss)
		want   error
	}{
		{"socket missing", func(b *boss) { b.welcome.Sockets = b.welcome.Sockets[:1] }, ErrProtocol},
		{"stranger's socket", func(b *boss) { b.welcome.Sockets[0].Listener = 9 }, ErrProtocol},
		{"no such slot", func(b *boss) { b.welcome.Slot = 999 }, ErrProtocol},
		{"key too short", func(b *boss) { b.welcome.Keys.StatelessReset = []byte{1} }, ErrProtocol},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBoss(t)
			tt.change(b)
			must(t, b.life.Send(&lifeline.Message{Kind: lifeline.KindWelcome, Welcome: &b.welcome}, b.files()...))
			if _, err := join(b.child, Options{}); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
	b := newBoss(t)
	must(t, b.life.Send(&lifeline.Message{Kind: lifeline.KindRefuse, Refuse: &lifeline.Refuse{Reason: "too new"}}))
	if _, err := join(b.child, Options{}); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "too new") {
		t.Errorf("refused: %v", err)
	}
}

func TestRunWithoutSupervisor(t *testing.T) {
	if code := Run(Options{}, nil); code != exitUsage {
		t.Errorf("exit code %d", code)
	}
}

func TestLogLevelCanBeSet(t *testing.T) {
	b := newBoss(t)
	b.run(func(_ context.Context, w *Worker) error {
		if w.Logger().Core().Enabled(zapcore.DebugLevel) || !w.Logger().Core().Enabled(zapcore.InfoLevel) {
			t.Error("a logger does not begin with info")
		}
		named := w.Logger().Named("part")
		w.SetLogLevel(zapcore.DebugLevel)
		if !named.Core().Enabled(zapcore.DebugLevel) {
			t.Error("debug is not enabled")
		}
		w.SetLogLevel(zapcore.ErrorLevel)
		if named.Core().Enabled(zapcore.WarnLevel) {
			t.Error("warn is enabled")
		}
		<-w.Stopping()
		return nil
	})
	b.send(&lifeline.Message{Kind: lifeline.KindStop, Stop: &lifeline.Stop{Grace: time.Second}})
	<-b.code
}

func TestDrainOrderNamesListeners(t *testing.T) { // C015
	now := time.Now()
	w := &Worker{byID: map[uint8]*listener{3: {info: lifeline.Listener{ID: 3, Name: "short"}}}}
	deadline := now.Add(time.Hour)
	o := w.drainOrder(&lifeline.Drain{Mode: DrainHold, Deadline: deadline, Listeners: map[uint8]lifeline.Limit{
		3: {Goodbye: time.Second, End: 3 * time.Second},
		9: {End: time.Second}, // of nobody
	}}, now)
	if len(o.Limits) != 1 || o.Limits["short"] != (Limit{Goodbye: now.Add(time.Second), End: now.Add(3 * time.Second)}) || o.Deadline != deadline {
		t.Errorf("order %+v", o)
	}
	if o := w.drainOrder(&lifeline.Drain{Mode: DrainHold}, now); o.Limits != nil {
		t.Errorf("limits out of nothing: %v", o.Limits)
	}
}
