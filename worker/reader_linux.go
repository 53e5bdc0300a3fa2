package worker

import (
	"errors"
	"net"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/holdfast-quic/holdfast/internal/udpmsg"
	"github.com/holdfast-quic/holdfast/packetqueue"
	"github.com/holdfast-quic/holdfast/shm"
)

const (
	// batch is how many messages one system call receives. With trains that is
	// up to batch * 64 datagrams.
	batch = 8
	// maxRounds is how often the sources are looked at in a row without a
	// datagram for quic-go, before the deadline and the plan are looked at.
	maxRounds = 16
	// maxFaults is how often reading is tried again after errors before the
	// reader may sleep.
	maxFaults = 4
	// manySockets is the number of sockets from which it pays to ask which are
	// readable before trying each.
	manySockets = 2
)

// reader is the receiving half of a conn. All of it belongs to the goroutine
// that calls ReadBatch.
type reader struct {
	conn   *conn
	node   *node
	begun  bool
	plan   *plan
	handed bool        // quic-go has been handed something since the last sleep
	tryFn  func() look // try as a value, made once
	now    int64       // CLOCK_MONOTONIC of the batch
	cidLen int

	// What ReadBatch has been asked for and how much of it is done.
	messages []ipv4.Message
	filled   int

	// Sockets.
	receiveFn func(*udpmsg.Batch, int) (int, syscall.Errno)
	batch     *udpmsg.Batch
	received  int // messages of batch
	nextMsg   int // first of them that has not been looked at
	from      *socket
	nextSock  int
	faults    int // errors of the sockets in this look at the sources
	events    [16]unix.EpollEvent
	direct    train // rest of the message that is being dealt with

	// Own queue.
	consumer  *packetqueue.Consumer
	record    packetqueue.Record
	pulled    train // rest of record
	queueTurn bool  // the queue comes next

	// Other workers.
	lanes   lanes
	peers   peers
	outward packetqueue.Record // being pushed

	addrs  *addrCache
	oob    [64]byte
	resets resetLimiter
	tally  tally
}

func (r *reader) init(c *conn, consumer *packetqueue.Consumer) {
	r.conn, r.node, r.consumer = c, c.node, consumer
	r.plan = newPlan(nil)
	r.tryFn = r.try
	r.receiveFn = (*udpmsg.Batch).Receive
	r.cidLen = c.node.router.Len()
	r.lanes = newLanes(c.node, c.listener.ID)
	r.peers = newPeers(c.node.directory, c.listener.ID)
	r.addrs = new(addrCache)
}

// read is ReadBatch. It never returns nothing without an error, which quic-go
// would take for a datagram.
func (r *reader) read(messages []ipv4.Message) (int, error) {
	r.messages, r.filled = messages, 0
	r.now = r.node.clock.now()
	// What the last call had no room for.
	r.dealAll()
	for r.filled == 0 {
		if err := r.conn.gate.waiter.wait(r.tryFn); err != nil {
			r.finish()
			r.stop()
			return 0, readError(err)
		}
	}
	r.finish()
	return r.filled, nil
}

// stop is the end of reading, for now: quic-go has closed the Transport.
func (r *reader) stop() {
	r.begun = false
	r.conn.gate.end()
	r.consumer.Disarm()
	r.lanes.release()
}

// finish ends a batch: wake whom packets were pushed to, give queue space
// back, and count.
func (r *reader) finish() {
	r.messages = nil
	r.ring()
	if len(r.pulled.data) == 0 {
		r.consumer.Done()
	}
	r.tally.flush(r.node.counters)
}

func (r *reader) ring() {
	if n := r.lanes.ring(); n > 0 {
		r.tally.add(shm.DoorbellsRung, n)
	}
}

// readError is what a caller of ReadBatch sees.
func readError(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return os.ErrDeadlineExceeded
	}
	return net.ErrClosed
}

// try looks at all sources until there is a datagram for quic-go. Otherwise it
// is safe to sleep: the queue is armed, and the waiter looks at the sources'
// state once more, so whatever comes after the look here ends the sleep.
func (r *reader) try() look {
	if r.conn.gate.changed(r.plan) {
		r.adopt()
	}
	r.now = r.node.clock.now()
	r.consumer.Disarm()
	r.faults = 0
	yielded := false
	for range maxRounds {
		progress := r.poll()
		switch {
		case r.filled > 0:
			r.handed = true
			return found
		case r.conn.gate.changed(r.plan):
			// Once more, since asking which sockets are ready may have used
			// up the event that announced it.
			r.adopt()
		case progress:
			r.ring()
			if !r.handed {
				// Those who got the packets, and those who sent them, come
				// first. If no thread waits for this CPU it costs next to
				// nothing; if one does, what comes meanwhile makes a larger
				// batch.
				yieldThread()
			}
			r.now = r.node.clock.now()
		case r.handed && !yielded:
			// Once more after the connections have had their turn with what
			// was read last: sleeping and being woken costs more than a look,
			// and what comes meanwhile makes a larger batch.
			yielded = true
			r.ring()
			runtime.Gosched()
			r.now = r.node.clock.now()
		case r.consumer.Arm():
			return r.rest()
		}
	}
	return found
}

// rest ends a look that found nothing for quic-go.
func (r *reader) rest() look {
	r.ring()
	r.tally.add(shm.Wakeups, 1)
	r.tally.flush(r.node.counters)
	if r.handed {
		r.handed = false
		return quiet
	}
	return passing
}

// yieldThread lets the threads that wait for this CPU run, of any process.
// sched_yield(2) returns at once or after a time slice of theirs; it is not
// announced to Go's scheduler, which would start a thread for it.
func yieldThread() { _, _, _ = syscall.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// adopt takes the wanted plan over. Without sockets nothing is forwarded any
// more, so the lanes go back, and the receive buffers too. Whom the last packets
// went to is woken first: who holds no lane rings nobody.
func (r *reader) adopt() {
	r.plan = r.conn.gate.adopt()
	for _, s := range r.plan.sockets {
		s.begin()
	}
	r.nextSock = 0
	if len(r.plan.sockets) == 0 {
		r.ring()
		r.lanes.release()
		r.batch, r.from = nil, nil
		return
	}
	if r.batch == nil {
		r.batch = udpmsg.NewBatch(batch, udpmsg.MaxDatagram)
	}
}

// poll looks at the sockets and the queue once, in turns as to who comes
// first, and reports whether there was anything.
func (r *reader) poll() (progress bool) {
	for range 2 {
		r.queueTurn = !r.queueTurn
		if r.queueTurn {
			progress = r.pull() || progress
		} else {
			progress = r.receive() || progress
		}
		if r.filled > 0 {
			break
		}
	}
	return progress
}

// dealAll continues with what has been read but not been looked at.
func (r *reader) dealAll() {
	r.deal(&r.direct)
	r.dealBatch()
	r.deal(&r.pulled)
}

func (r *reader) full() bool { return r.filled == len(r.messages) }

// receive reads one batch from the next socket that has something.
func (r *reader) receive() bool {
	n := len(r.plan.sockets)
	switch {
	case n == 0:
		return false
	case n < manySockets:
		return r.receiveFrom(r.plan.sockets[0])
	}
	events := r.conn.gate.waiter.ready(r.events[:])
	for i := range n {
		s := r.plan.sockets[(r.nextSock+i)%n]
		if !isReady(events, s.fd) && len(events) < len(r.events) {
			continue
		}
		if r.receiveFrom(s) {
			r.nextSock = (r.nextSock + i + 1) % n
			return true
		}
	}
	return false
}

func isReady(events []unix.EpollEvent, fd int) bool {
	for i := range events {
		if int(events[i].Fd) == fd {
			return true
		}
	}
	return false
}

// receiveFrom reads one batch from s. Whatever is wrong with a socket is not
// worth the end of a connection: the read is tried again a few times, since
// what waits behind the error announces itself no second time, and then it is
// as if the socket were empty.
func (r *reader) receiveFrom(s *socket) bool {
	n, errno := r.receiveFn(r.batch, s.fd)
	if errno == unix.EAGAIN {
		return false
	}
	if errno != 0 || n == 0 {
		r.faults++
		return r.faults <= maxFaults
	}
	r.received, r.nextMsg, r.from = n, 0, s
	r.dealBatch()
	return true
}

// dealBatch deals with received messages until the caller's are full.
func (r *reader) dealBatch() {
	for len(r.direct.data) == 0 && r.nextMsg < r.received && !r.full() {
		m := r.batch.Message(r.nextMsg)
		r.nextMsg++
		if m.HasDropped {
			if n := r.from.newDrops(m.Dropped); n > 0 {
				r.tally.add(shm.KernelDrops, n)
			}
		}
		t := &r.direct
		t.set(fromSocket, m.Payload, m.Segment)
		t.remote, t.local, t.ifIndex, t.ecn = m.Remote, m.Local, m.IfIndex, m.ECN
		r.tally.add(shm.PacketsReceived, uint64(max(t.count(len(t.data)), 1)))
		r.tally.add(shm.BytesReceived, uint64(len(t.data)))
		if len(t.data) == 0 || t.remote.Family == 0 {
			r.tally.add(shm.DropMalformed, uint64(max(t.count(len(t.data)), 1)))
			t.data = nil
			continue
		}
		r.deal(t)
	}
}

// pull takes records out of the own queue until the caller's messages are
// full.
func (r *reader) pull() bool {
	progress := false
	for !r.full() && len(r.pulled.data) == 0 && r.consumer.Next(&r.record) {
		progress = true
		rec := &r.record
		n := uint64(rec.Packets())
		if rec.Target != uint32(r.node.self.Incarnation) {
			r.tally.add(shm.DropStaleRecord, n)
			continue
		}
		r.tally.add(shm.PacketsPulled, n)
		r.tally.add(shm.QueueDelayCounter(time.Duration(r.now-rec.Pushed)), n)
		t := &r.pulled
		t.set(fromQueue, rec.Payload, int(rec.Segment))
		t.remote, t.local = udpmsg.Addr(rec.Remote), udpmsg.Addr(rec.Local)
		t.ifIndex, t.ecn = rec.IfIndex, rec.ECN
		if len(t.data) == 0 || t.remote.Family == 0 {
			r.tally.add(shm.DropLoop, n)
			t.data = nil
			continue
		}
		r.deal(t)
	}
	return progress
}
