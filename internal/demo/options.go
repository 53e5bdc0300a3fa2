package demo

import (
	"io"
	"time"
)

// Pace of the demonstration. One machine is server and client, so it is
// gentle: what is shown is that nothing is lost, not how fast it is.
const (
	requestPeriod  = 200 * time.Millisecond
	requestTimeout = 10 * time.Second
	transferRate   = 50_000 // bytes per second and transfer
	transferPeriod = 100 * time.Millisecond
	newConnPeriod  = 50 * time.Millisecond
	reloadPause    = 2 * time.Second // around each reload
	connectAtOnce  = 16              // handshakes of the start
	startTimeout   = 20 * time.Second
	stopTimeout    = 10 * time.Second
)

// keepAlive is how long a client waits in silence. A client whose request has
// arrived and been acknowledged has nothing to send until the answer comes. If
// its port changes then, the answer goes to the old port again and again, and
// only a packet from the new one can tell the server better: without one the
// client waits until it gives up. So clients that wait for answers have to
// speak up (RFC 9114, section 5.1; RFC 9000, section 10.1.2), and those behind
// a NAT more often than it forgets them.
const keepAlive = time.Second

// Options say how big the demonstration is.
type Options struct {
	// Connections to hold. Default 200.
	Connections int
	// Reloads to do. Default 5.
	Reloads int
	// Command is the program and first arguments that a supervisor's own
	// arguments follow. Required.
	Command []string
	// Progress gets one line that is written over again and again when
	// Overwrite is set, otherwise a line per step. nil = none.
	Progress  io.Writer
	Overwrite bool
}

func (o Options) withDefaults() Options {
	if o.Connections == 0 {
		o.Connections = 200
	}
	if o.Reloads == 0 {
		o.Reloads = 5
	}
	return o
}
