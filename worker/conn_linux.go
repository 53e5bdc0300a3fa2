package worker

import (
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/quic-go/quic-go"
	"golang.org/x/net/ipv4"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
	"github.com/holdfast-quic/holdfast/internal/udpmsg"
	"github.com/holdfast-quic/holdfast/packetqueue"
	"github.com/holdfast-quic/holdfast/shm"
)

// conn is the net.PacketConn of one listener: what quic-go reads from and
// writes to in place of a UDP socket. ReadBatch returns datagrams of this
// worker's connections only, from wherever they came.
//
// ReadBatch is called by one goroutine; all else may be called by any.
type conn struct {
	node     *node
	listener lifeline.Listener
	sender   *sender
	gate     *gate
	standIn  *os.File // see SyscallConn

	local   net.Addr
	localIP udpmsg.Addr

	rx       reader
	refusals refusalLimiter // of the goroutine that reads
}

var (
	_ quic.OOBCapablePacketConn = (*conn)(nil)
	_ interface {
		ReadBatch([]ipv4.Message, int) (int, error)
	} = (*conn)(nil)
)

// newConn makes the conn of a listener with all its UDP sockets. It reads the
// worker's queue from the first ReadBatch on, and no socket before its gate
// names one. bell is the descriptor of the worker's own doorbell.
func newConn(n *node, l lifeline.Listener, sockets []*socket, bell int) (_ *conn, err error) {
	sender, err := newSender(sockets)
	if err != nil {
		return nil, fmt.Errorf("listener %s: %w", l.Name, err)
	}
	defer func() {
		if err != nil {
			sender.close()
			err = fmt.Errorf("listener %s: %w", l.Name, err)
		}
	}()
	consumer, err := packetqueue.OpenConsumer(n.segment.Queue(n.self.Slot), l.ID)
	if err != nil {
		return nil, fmt.Errorf("own queue: %w", err)
	}
	g, err := newGate(func(err error) { n.warn("cannot watch a socket", l.Name, err) })
	if err != nil {
		return nil, err
	}
	if err = g.waiter.addEdge(bell); err != nil {
		g.close()
		return nil, fmt.Errorf("watch doorbell: %w", err)
	}
	c := &conn{node: n, listener: l, sender: sender, gate: g}
	if c.standIn, err = newStandIn(sender.primary().Family); err != nil {
		g.close()
		return nil, err
	}
	sender.lost = func() { n.counters.Add(shm.SendErrors, 1) }
	sender.warning = func(what string, err error) { n.warn(what, l.Name, err) }
	c.localIP = sender.primary()
	c.local = c.localIP.UDPAddr()
	c.rx.init(c, consumer)
	return c, nil
}

// ReadBatch fills messages with datagrams of local connections and returns how
// many. It waits for the first. The only errors are those of a closed conn and
// of a deadline that has passed.
func (c *conn) ReadBatch(messages []ipv4.Message, _ int) (int, error) {
	if !c.rx.begun {
		c.rx.begun = true
		c.gate.begin()
	}
	return c.rx.read(messages)
}

// ReadFrom reads one datagram. quic-go uses ReadBatch.
func (c *conn) ReadFrom(b []byte) (int, net.Addr, error) {
	m := []ipv4.Message{{Buffers: [][]byte{b}}}
	if _, err := c.ReadBatch(m, 0); err != nil {
		return 0, nil, err
	}
	return m[0].N, m[0].Addr, nil
}

// ReadMsgUDP reads one datagram with its control messages. quic-go uses
// ReadBatch.
func (c *conn) ReadMsgUDP(b, oob []byte) (n, oobn, flags int, addr *net.UDPAddr, err error) {
	m := []ipv4.Message{{Buffers: [][]byte{b}, OOB: oob}}
	if _, err := c.ReadBatch(m, 0); err != nil {
		return 0, 0, 0, nil, err
	}
	return m[0].N, m[0].NN, 0, m[0].Addr.(*net.UDPAddr), nil
}

// WriteTo sends one datagram.
func (c *conn) WriteTo(b []byte, addr net.Addr) (int, error) {
	to, ok := addr.(*net.UDPAddr)
	if !ok {
		return 0, fmt.Errorf("send to %v: %w", addr, syscall.EAFNOSUPPORT)
	}
	n, _, err := c.WriteMsgUDP(b, nil, to)
	return n, err
}

// WriteMsgUDP sends a datagram, or several with UDP_SEGMENT in oob. An error
// is one that quic-go acts upon; anything that only costs this datagram is
// counted and not reported, since quic-go ends a connection whose packet could
// not be sent.
func (c *conn) WriteMsgUDP(b, oob []byte, addr *net.UDPAddr) (n, oobn int, err error) {
	if scid, ok := issuedSCID(b, c.node.router.Len()); ok {
		c.node.issued(scid)
	}
	if err := c.sender.send(b, oob, addr); err != nil {
		return 0, 0, err
	}
	return len(b), len(oob), nil
}

// LocalAddr returns the address that the listener is bound to.
func (c *conn) LocalAddr() net.Addr { return c.local }

// SetReadBuffer does nothing: the supervisor has sized the buffers of the
// sockets that it owns.
func (c *conn) SetReadBuffer(int) error { return nil }

// SetWriteBuffer does nothing, like SetReadBuffer.
func (c *conn) SetWriteBuffer(int) error { return nil }

// SetDeadline sets the read deadline.
func (c *conn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// SetReadDeadline ends a ReadBatch that waits with [os.ErrDeadlineExceeded].
func (c *conn) SetReadDeadline(t time.Time) error { return c.gate.waiter.file.SetReadDeadline(t) }

// SetWriteDeadline does nothing, since sending waits for no more than a
// moment.
func (c *conn) SetWriteDeadline(time.Time) error { return nil }

// SyscallConn returns a socket of the same family that is bound to nothing.
// quic-go sets options on what it gets here, and learns what the kernel can do.
// The listening sockets are not its own: with the right to, it would raise
// their buffers over what sockets.receive_buffer says, for every process that
// has them. All else that it sets, udpmsg.Prepare has set on them.
func (c *conn) SyscallConn() (syscall.RawConn, error) { return c.standIn.SyscallConn() }

// Close ends reading and sending. The sockets stay open, and stay bound, in
// the hands of the worker.
func (c *conn) Close() error {
	if err := c.gate.close(); err != nil {
		return err
	}
	c.sender.close()
	return c.standIn.Close()
}
