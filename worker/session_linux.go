package worker

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/holdfast-quic/holdfast/connid"
	"github.com/holdfast-quic/holdfast/internal/lifeline"
	"github.com/holdfast-quic/holdfast/shm"
)

// orphanGrace is how long a worker takes to say goodbye when its supervisor is
// gone and no other can come: nobody would replace or steer it any more.
const orphanGrace = 5 * time.Second

// connsPerReply keeps a reply with connections well below the size of one
// lifeline message.
const connsPerReply = 200

// follow does what the supervisor says, and the one after it. It is the only
// reader of the lifeline.
func (w *Worker) follow() {
	for {
		life := w.tether.current()
		m, files, err := life.Recv()
		if err != nil {
			if !w.orphaned(err) {
				return
			}
			continue
		}
		if err := w.obey(life, m, files); err != nil {
			w.log.Error("cannot do what the supervisor says", zap.String("kind", string(m.Kind)), zap.Error(err))
		}
		closeAll(files)
	}
}

// orphaned is the end of the lifeline. It reports whether there is another.
func (w *Worker) orphaned(err error) bool {
	select {
	case <-w.ended:
		return false
	default:
	}
	what := "supervisor is gone"
	if !errors.Is(err, io.EOF) {
		what = "lifeline is broken"
	}
	if w.tether.outlives() {
		w.log.Warn(what+"; serving on until there is another", zap.NamedError("reason", err), zap.Duration("orphan_timeout", w.tether.timeout))
		if w.awaitSupervisor() {
			return true
		}
	} else {
		w.log.Warn(what+", stopping", zap.NamedError("reason", err), zap.Duration("grace", orphanGrace))
	}
	w.orders.stop(orphanGrace)
	return false
}

// obey carries out one message, and answers on the lifeline that it came by: what
// the next supervisor hears of is what it has asked for itself. The files stay
// the caller's.
func (w *Worker) obey(life *lifeline.Conn, m *lifeline.Message, files []*os.File) error {
	switch m.Kind {
	case lifeline.KindReaders:
		return w.readers(life, m.Readers)
	case lifeline.KindSocket:
		return w.addSocket(*m.Socket, files)
	case lifeline.KindDropSocket:
		return w.dropSocket(*m.Socket)
	case lifeline.KindPeer:
		if len(files) != 1 {
			return fmt.Errorf("%w: %d descriptors with a doorbell", ErrProtocol, len(files))
		}
		if err := w.node.bells.set(shm.SlotID(m.Peer.Slot), files[0]); err != nil {
			return err
		}
		return life.Send(&lifeline.Message{Kind: lifeline.KindPeerSet, Peer: m.Peer})
	case lifeline.KindDrain:
		w.node.setPhase(shm.PhaseDraining)
		w.orders.drain(w.drainOrder(m.Drain, time.Now()), w.node.clock.now(), m.Drain.Linger)
	case lifeline.KindUndrain:
		if w.orders.undrain() {
			w.node.setPhase(w.servingPhase())
		}
	case lifeline.KindStop:
		w.node.setPhase(shm.PhaseDraining)
		w.orders.stop(m.Stop.Grace)
	case lifeline.KindNonceLease:
		w.noncesAsked.Store(false)
		w.cids.add(connid.Range{From: m.NonceLease.From, To: m.NonceLease.To})
	case lifeline.KindConnsQuery:
		return w.listConns(life, m.ConnsQuery.Seq)
	case lifeline.KindCloseConn:
		return w.closeConn(life, m.CloseConn)
	case lifeline.KindReopenLogs:
		select {
		case w.reopen <- struct{}{}:
		default:
		}
	default:
		// A newer supervisor may say more than this worker understands.
		w.log.Debug("message of an unknown kind", zap.String("kind", string(m.Kind)))
	}
	return nil
}

// drainOrder is what an order that arrives now means to the program.
func (w *Worker) drainOrder(d *lifeline.Drain, now time.Time) DrainOrder {
	o := DrainOrder{Mode: d.Mode, Window: d.Window, Deadline: d.Deadline}
	for id, limit := range d.Listeners {
		l, ok := w.byID[id]
		if !ok {
			continue
		}
		if o.Limits == nil {
			o.Limits = make(map[string]Limit, len(d.Listeners))
		}
		o.Limits[l.info.Name] = Limit{Goodbye: now.Add(limit.Goodbye), End: now.Add(limit.End)}
	}
	return o
}

// readers sets which sockets are used and acknowledges once that is in force,
// without holding up the lifeline meanwhile.
func (w *Worker) readers(life *lifeline.Conn, r *lifeline.Readers) error {
	var changes []<-chan struct{}
	for id, l := range w.byID {
		changes = append(changes, l.read(r.UDP[id], r.TCP[id])...)
	}
	go func() {
		for _, changed := range changes {
			select {
			case <-changed:
			case <-w.ended:
				return
			}
		}
		advance(&w.readersSeq, r.Seq)
		if err := life.Send(&lifeline.Message{
			Kind: lifeline.KindReadersSet, ReadersSet: &lifeline.ReadersSet{Seq: r.Seq},
		}); err != nil {
			w.log.Debug("acknowledge readers", zap.Error(err))
		}
	}()
	return nil
}

// servingPhase is how far a worker is that is not to drain.
func (w *Worker) servingPhase() shm.Phase {
	if w.ready.Load() {
		return shm.PhaseServing
	}
	return shm.PhaseStarting
}

// advance raises n to at least to.
func advance(n *atomic.Uint64, to uint64) {
	for old := n.Load(); old < to && !n.CompareAndSwap(old, to); old = n.Load() {
	}
}

func (w *Worker) addSocket(s lifeline.Socket, files []*os.File) error {
	l, ok := w.byID[s.Listener]
	if !ok {
		return fmt.Errorf("%w: socket of listener %d, which is not ours", ErrProtocol, s.Listener)
	}
	if len(files) != 1 {
		return fmt.Errorf("%w: %d descriptors with a socket", ErrProtocol, len(files))
	}
	changed, old, err := l.addSocket(files[0], s)
	w.closeAfter(changed, old)
	return err
}

func (w *Worker) dropSocket(s lifeline.Socket) error {
	l, ok := w.byID[s.Listener]
	if !ok {
		return fmt.Errorf("%w: socket of listener %d, which is not ours", ErrProtocol, s.Listener)
	}
	changed, old, err := l.dropSocket(s)
	w.closeAfter(changed, old)
	return err
}

// closeAfter closes a socket once nobody watches it any more.
func (w *Worker) closeAfter(changed <-chan struct{}, s *socket) {
	if s == nil || changed == nil {
		return
	}
	go func() {
		select {
		case <-changed:
			s.close()
		case <-w.ended:
		}
	}()
}

// closeConn ends a connection. The answer goes first: a worker that drains may
// be gone with its last connection, and the answer with it.
func (w *Worker) closeConn(life *lifeline.Conn, m *lifeline.CloseConn) error {
	reply := &lifeline.ConnsReply{Seq: m.Seq, Last: true}
	end, err := w.registry.closer(m.ID)
	if err != nil {
		reply.Error = err.Error()
	}
	if err := life.Send(&lifeline.Message{Kind: lifeline.KindConnsReply, ConnsReply: reply}); err != nil {
		return err
	}
	if end != nil {
		end()
	}
	return nil
}

func (w *Worker) listConns(life *lifeline.Conn, seq uint64) error {
	conns := w.registry.list()
	for {
		n := min(len(conns), connsPerReply)
		reply := &lifeline.ConnsReply{Seq: seq, Conns: conns[:n], Last: n == len(conns)}
		if err := life.Send(&lifeline.Message{Kind: lifeline.KindConnsReply, ConnsReply: reply}); err != nil {
			return err
		}
		if conns = conns[n:]; len(conns) == 0 {
			return nil
		}
	}
}

// attach makes a Worker of the Welcome and its descriptors, which stay the
// caller's.
func attach(life *lifeline.Conn, o Options, welcome *lifeline.Welcome, files []*os.File) (_ *Worker, err error) {
	style := &logStyle{level: zap.NewAtomicLevel()}
	log := newLogger(welcome, style)
	const fixed = 3 // segment, configuration, doorbell
	want := fixed + len(welcome.Peers) + len(welcome.Sockets)
	if welcome.Handover {
		want++
	}
	if len(files) != want {
		return nil, fmt.Errorf("%w: %d descriptors with the welcome, not %d", ErrProtocol, len(files), want)
	}
	var handover *os.File
	if welcome.Handover {
		handover, files = files[want-1], files[:want-1]
	}
	tether, err := newTether(life, o, files[0], files[1], handover)
	if err != nil {
		return nil, err
	}
	tether.timeout = welcome.OrphanTimeout
	defer func() {
		if err != nil {
			tether.release()
		}
	}()
	w := &Worker{
		tether: tether, welcome: *welcome, log: log, logStyle: style, bell: -1,
		listeners: map[string]*listener{}, byID: map[uint8]*listener{},
		nonces: make(chan struct{}, 1), reopen: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	w.orders.init()
	if err := w.setKeys(&welcome.Keys); err != nil {
		return nil, err
	}
	w.welcome.Keys = lifeline.Keys{} // not kept a second time
	if w.config, err = readAll(files[1]); err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	segment, err := shm.Attach(files[0])
	if err != nil {
		return nil, fmt.Errorf("attach segment: %w", err)
	}
	router, err := connid.NewRouter(connid.Config{
		Rotation: welcome.Keys.CIDConfig, ServerID: welcome.Keys.ServerID, Key: welcome.Keys.CID,
	})
	if err != nil {
		return nil, fmt.Errorf("connection IDs: %w", err)
	}
	self := shm.Owner{Slot: shm.SlotID(welcome.Slot), Incarnation: shm.Incarnation(welcome.Incarnation)}
	if int(self.Slot) >= segment.Geometry().Slots {
		return nil, fmt.Errorf("%w: slot %d of %d", ErrProtocol, self.Slot, segment.Geometry().Slots)
	}
	if w.node, err = newNode(segment, self, shm.Generation(welcome.Generation), router); err != nil {
		return nil, err
	}
	w.node.retries.key = w.tokenKey
	w.node.warn = func(what, listener string, err error) {
		log.Warn(what, zap.String("listener", listener), zap.Error(err))
	}
	w.node.setPhase(shm.PhaseStarting)
	w.node.beat()
	w.registry = newRegistry(w.node)
	w.cids = newCIDGenerator(router, w.route(), connid.Range{From: welcome.Nonces.From, To: welcome.Nonces.To}, w.wantNonces)
	if err := w.inherit(files[2:]); err != nil {
		w.end()
		return nil, err
	}
	return w, nil
}

// inherit takes doorbells and sockets: own doorbell, peers, sockets.
func (w *Worker) inherit(files []*os.File) (err error) {
	if w.bell, err = dupFD(files[0]); err != nil {
		return fmt.Errorf("own doorbell: %w", err)
	}
	files = files[1:]
	for i, slot := range w.welcome.Peers {
		if err := w.node.bells.set(shm.SlotID(slot), files[i]); err != nil {
			return err
		}
	}
	files = files[len(w.welcome.Peers):]
	for _, info := range w.welcome.Listeners {
		l := &listener{info: info}
		w.listeners[info.Name], w.byID[info.ID] = l, l
	}
	for i, s := range w.welcome.Sockets {
		l, ok := w.byID[s.Listener]
		if !ok {
			return fmt.Errorf("%w: socket of listener %d, which is not ours", ErrProtocol, s.Listener)
		}
		if _, _, err := l.addSocket(files[i], s); err != nil {
			return err
		}
	}
	return nil
}

// setKeys copies the keys. Errors never show them.
func (w *Worker) setKeys(k *lifeline.Keys) error {
	if copy(w.resetKey[:], k.StatelessReset) != 32 || len(k.StatelessReset) != 32 {
		return fmt.Errorf("%w: stateless reset key of %d bytes", ErrProtocol, len(k.StatelessReset))
	}
	if copy(w.tokenKey[:], k.Token) != 32 || len(k.Token) != 32 {
		return fmt.Errorf("%w: token key of %d bytes", ErrProtocol, len(k.Token))
	}
	for _, t := range k.Tickets {
		if len(t) != 32 {
			return fmt.Errorf("%w: ticket key of %d bytes", ErrProtocol, len(t))
		}
		w.tickets = append(w.tickets, [32]byte(t))
	}
	return nil
}

// readAll reads a memfd from its start, wherever its shared offset stands.
func readAll(f *os.File) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.NewSectionReader(f, 0, info.Size()))
}
