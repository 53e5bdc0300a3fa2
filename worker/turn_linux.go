package worker

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-quic/holdfast/shm"
)

const (
	// turnPause is how long a worker that is not in turn leaves a waiting
	// connection to those that are, before it looks again.
	turnPause = 500 * time.Microsecond
	// turnPatience is how long a connection waits for those in turn; then any
	// worker takes it. They may be stopped, and a connection counts for more
	// than the share.
	turnPatience = 50 * time.Millisecond
)

// errNotOurTurn says that a connection waits which another generation is to
// take.
var errNotOurTurn = errors.New("another generation is in turn")

// turnTaker keeps to the turns of TCP connections while a canary has a share.
// It belongs to the goroutine that accepts on one listener.
type turnTaker struct {
	node  *node
	peers peers
	polls []unix.PollFd

	seen     shm.Turn // that a connection waits on and is not ours; zero: none
	since    int64    // when that was first seen
	patience time.Duration
}

func newTurnTaker(n *node, listener uint8) turnTaker {
	return turnTaker{node: n, peers: newPeers(n.directory, listener), patience: turnPatience}
}

// ticket is the right to take one connection.
type ticket struct {
	choice shm.Choice
	as     shm.Generation // for which it counts; 0: nobody keeps account
}

// take reports whether this worker may accept now. If not, waits reports
// whether there is a connection that it leaves to others.
func (t *turnTaker) take(sockets []*socket) (k ticket, ok, waits bool) {
	c, own := t.node.admission.Load(), t.node.generation
	if c.Canary == 0 || own != c.Current && own != c.Canary {
		return ticket{}, true, false
	}
	turn := t.node.admission.TCPTurn(c)
	k = ticket{c, turn.Generation}
	if turn.Generation == own {
		return k, true, false
	}
	// What the other generation cannot take counts as taken by it, so that it
	// is not made up for later.
	if _, able := t.peers.pick(turn.Generation, 0); !able {
		return k, true, false
	}
	if !t.readable(sockets) {
		return k, false, false
	}
	now := t.node.clock.now()
	switch {
	case turn != t.seen:
		if t.seen != (shm.Turn{}) {
			t.patience = turnPatience // they took the last one
		}
		t.seen, t.since = turn, now
	case time.Duration(now-t.since) >= t.patience:
		// Whoever lets one wait lets the next one wait too, most likely.
		t.seen, t.patience = shm.Turn{}, max(t.patience/2, turnPause)
		return k, true, false
	}
	return k, false, true
}

// taken moves the turn on.
func (t *turnTaker) taken(k ticket) {
	if k.as != 0 {
		t.node.admission.TCPTaken(k.choice, k.as)
	}
}

// readable reports whether a connection waits in one of the sockets. It uses up
// no event that the waiter has to see.
func (t *turnTaker) readable(sockets []*socket) bool {
	t.polls = t.polls[:0]
	for _, s := range sockets {
		t.polls = append(t.polls, unix.PollFd{Fd: int32(s.fd), Events: unix.POLLIN})
	}
	n, err := unix.Poll(t.polls, 0)
	return n > 0 || err != nil
}
