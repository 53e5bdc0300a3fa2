package worker

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/holdfast-quic/holdfast/connid"
	"github.com/holdfast-quic/holdfast/internal/lifeline"
	"github.com/holdfast-quic/holdfast/shm"
)

// Worker is what a program has from Holdfast: its listeners, its configuration
// and the wishes of the supervisor. All methods may be called by any
// goroutine.
type Worker struct {
	tether  *tether
	welcome lifeline.Welcome
	config  []byte

	log      *zap.Logger
	logStyle *logStyle // of log

	node      *node
	bell      int // own doorbell
	cids      *cidGenerator
	registry  *registry
	listeners map[string]*listener
	byID      map[uint8]*listener

	resetKey [32]byte
	tokenKey [32]byte
	tickets  [][32]byte

	ready       atomic.Bool   // the program has said so
	readersSeq  atomic.Uint64 // of the last readers that are in force
	noncesAsked atomic.Bool   // and not got

	nonces  chan struct{} // wakes the request for more nonces
	reopen  chan struct{}
	ended   chan struct{} // closed when nothing of the worker is used any more
	endOnce sync.Once

	orders orders
}

// Listener is a named listener of the configuration.
type Listener struct {
	Name      string
	QUIC, TCP bool
	Addresses []string // bound addresses, host:port; those of UDP and TCP may be the same
}

// Config returns the configuration that the supervisor passes on to workers,
// as it is. The caller must not change it.
func (w *Worker) Config() []byte { return w.config }

// ConfigHash returns the name of the configuration in status and logs.
func (w *Worker) ConfigHash() string { return w.welcome.ConfigHash }

// Generation returns the number of the worker's generation.
func (w *Worker) Generation() uint32 { return w.welcome.Generation }

// Slot returns the worker slot.
func (w *Worker) Slot() uint16 { return w.welcome.Slot }

// Incarnation returns the number of this process among all that the service
// has started.
func (w *Worker) Incarnation() uint32 { return w.welcome.Incarnation }

// Listeners returns the listeners in the order of the configuration.
func (w *Worker) Listeners() []Listener {
	out := make([]Listener, 0, len(w.welcome.Listeners))
	for _, info := range w.welcome.Listeners {
		l := Listener{Name: info.Name, QUIC: info.QUIC, TCP: info.TCP}
		for _, s := range w.welcome.Sockets {
			if s.Listener == info.ID && !s.Retiring && !slices.Contains(l.Addresses, s.Address) {
				l.Addresses = append(l.Addresses, s.Address)
			}
		}
		out = append(out, l)
	}
	return out
}

// TicketKeys returns the keys for TLS session tickets, the one that encrypts
// first, as tls.Config.SetSessionTicketKeys takes them. All workers of all
// generations have the same ones.
func (w *Worker) TicketKeys() [][32]byte { return slices.Clone(w.tickets) }

// ReopenLogs gets a value when log files are to be opened again, because
// somebody has renamed them.
func (w *Worker) ReopenLogs() <-chan struct{} { return w.reopen }

// Ready tells the supervisor that the program serves. Before, it has opened
// what it needs and listens on its transports. New connections come in only
// when the supervisor has tried this worker out. An error means that the
// supervisor is gone.
func (w *Worker) Ready() error {
	w.node.setPhase(shm.PhaseServing)
	w.ready.Store(true) // before the message: if that is lost, the next supervisor is told
	if err := w.tether.send(&lifeline.Message{Kind: lifeline.KindReady}); err != nil && !w.tether.outlives() {
		return fmt.Errorf("report ready: %w", err)
	}
	return nil
}

// housekeeping beats once a second and notices when a draining worker has
// nothing left to do. It ends with the worker.
func (w *Worker) housekeeping() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	settled := time.NewTimer(0)
	defer settled.Stop()
	for {
		select {
		case <-w.ended:
			return
		case <-tick.C:
			w.node.beat()
			w.registry.restate()
			w.node.clearTable(w.registry.noQUIC)
			w.lookIdle(settled)
		case <-w.orders.began:
			// What this generation has freed is of use to the next.
			w.orders.releaseMemory(w.ended)
			w.lookIdle(settled)
		case <-w.registry.empty:
			w.lookIdle(settled)
		case <-settled.C:
			w.lookIdle(settled)
		}
	}
}

// idleSettle is how long there must have been no connection and no new one
// before a draining worker calls itself idle.
const idleSettle = 250 * time.Millisecond

// lookIdle closes Idle if the worker drains, has no connection, has accepted
// none for a moment, and need not stay for its generation to come back; else it
// looks again when the moment is over.
func (w *Worker) lookIdle(again *time.Timer) {
	if !w.orders.isDraining() {
		return
	}
	if quic, tcp := w.registry.counts(); quic+tcp > 0 {
		return
	}
	now := w.node.clock.now()
	quiet := time.Duration(now - max(w.node.admitted.last.Load(), w.orders.since.Load()))
	if wait := max(idleSettle-quiet, time.Duration(w.orders.lingers.Load()-now)); wait > 0 {
		again.Reset(wait)
		return
	}
	w.orders.setIdle()
}

// requestNonces asks for connection-ID nonces whenever half of the granted
// ones are used up.
func (w *Worker) requestNonces() {
	for {
		select {
		case <-w.ended:
			return
		case <-w.nonces:
			w.noncesAsked.Store(true)
			// An error means that the supervisor is gone, which the reader of
			// the lifeline sees too; the next one is asked again.
			_ = w.tether.send(&lifeline.Message{Kind: lifeline.KindNonceRequest})
		}
	}
}

// wantNonces wakes requestNonces. It never blocks.
func (w *Worker) wantNonces() {
	select {
	case w.nonces <- struct{}{}:
	default:
	}
}

// end closes everything. QUIC connections that are still there end without a
// word; the program has said goodbye to them by now.
func (w *Worker) end() {
	w.endOnce.Do(func() {
		w.node.setPhase(shm.PhaseDone)
		close(w.ended)
		w.tether.release()
		for _, l := range w.listeners {
			l.close()
		}
		w.node.bells.close()
		unix.Close(w.bell)
	})
}

// route is what this worker's connection IDs say.
func (w *Worker) route() connid.Route {
	return connid.Route{Slot: w.welcome.Slot, Incarnation: w.welcome.Incarnation & 0xffffff}
}
