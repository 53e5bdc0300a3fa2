package supervisor

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
	"github.com/holdfast-quic/holdfast/packetqueue"
	"github.com/holdfast-quic/holdfast/shm"
)

// Defaults of the zero values in Spec.
const (
	DefaultDrainTimeout   = time.Hour
	DefaultStopTimeout    = 30 * time.Second
	DefaultDrainGrace     = 5 * time.Second
	DefaultLiveness       = 30 * time.Second
	DefaultMaxGenerations = 16
	DefaultReadyTimeout   = 30 * time.Second
	DefaultProbeTimeout   = 10 * time.Second
	DefaultStartTries     = 5
	DefaultSocketBuffer   = 7 << 20 // bytes; what quic-go asks for
	DefaultIdleTimeout    = 10 * time.Minute
	DefaultTicketRotation = 24 * time.Hour
	DefaultProbation      = 30 * time.Second
)

// What happens to a reload that finds Drain.MaxGenerations draining.
const (
	// OverflowWait holds the reload back until one of them has ended.
	OverflowWait = "wait"
	// OverflowEvict ends the oldest of them early.
	OverflowEvict = "evict"
)

// What Spec.Steering asks for.
const (
	// SteeringAuto takes the best way that there is.
	SteeringAuto = "auto"
	// SteeringQueue hands packets over in shared memory.
	SteeringQueue = "queue"
)

// Options is what a Supervisor is made of. Load, RuntimeDir and StateDir are
// required.
type Options struct {
	// Name of the instance, for status and logs. Default "default".
	Name string
	// RuntimeDir holds lock, PID file and admin socket; made with mode 0700.
	RuntimeDir string
	// StateDir holds the keys; made with mode 0700.
	StateDir string
	// Version and BuildID of this binary, for status.
	Version string
	BuildID string
	// Load reads and validates the configuration. It is called for the first
	// start and for each reload, never twice at once, and not on the loop's
	// goroutine. Its error is shown as it is, with the code invalid_config.
	Load func() (*Spec, error)
	// Probe proves that a worker serves one QUIC listener. It runs beside the
	// loop, several at once. Default: no probe.
	Probe func(ctx context.Context, target ProbeTarget) error
	// Verify are the arguments that make a binary of this program call
	// [Verify], for upgrades: a new one is run with them before anything else
	// is done with it. Default: none, and upgrades are refused.
	Verify []string
	// Rehearse is the command line of this program, for upgrades: a new one that
	// accepts is run with it once more, and has to ask Rehearsing then. Default:
	// no rehearsal.
	Rehearse []string
	// Resume is what Resume returned; nil for a start of its own.
	Resume *Resumption
	// Log receives what an operator should know. Default: nothing is logged.
	Log *zap.Logger
	// ReopenLogs opens this process's own log files again (SIGUSR1). Default:
	// nothing to do.
	ReopenLogs func() error
	// AnyListenPID accepts sockets that a service manager has passed to another
	// process, which has started this one.
	AnyListenPID bool
	// Signals is the channel that CatchSignals returned, called as the first
	// statement of the program. Default: New calls CatchSignals.
	Signals <-chan os.Signal
}

// Spec is one validated configuration as far as the supervisor is concerned.
// It is not changed after Load returned it.
type Spec struct {
	ConfigPath string // for status
	// ConfigHash tells configurations apart in status and for workers.
	// Default: "sha256:" and a hash of this whole Spec.
	ConfigHash string
	// Payload goes to the workers as it is.
	Payload   []byte
	Listeners []ListenerSpec
	// Workers is the number of processes of the generation. Default 1.
	Workers int
	// Command starts a worker. Default: this binary with the argument "worker".
	Command []string
	// Account is the user that the workers run as, without capabilities either
	// way. Default: the supervisor's own.
	Account *Account
	// MaxProcs is the GOMAXPROCS of each worker; 0 leaves it alone.
	MaxProcs int
	// Steering is SteeringAuto (default) or SteeringQueue.
	Steering string
	Drain    DrainSpec
	// ReadyTimeout bounds process start to ready; ProbeTimeout each probe.
	ReadyTimeout time.Duration
	ProbeTimeout time.Duration
	// MinInterval is the least time between the starts of two reloads; what
	// is asked for in between is merged. Default 0.
	MinInterval time.Duration
	// StartTries is how often the first generation is tried.
	StartTries int
	// Geometry of the segment; can't change by a reload. Zero value:
	// shm.DefaultGeometry.
	Geometry shm.Geometry
	// ServerID is the QUIC-LB server ID of this host, 1 to 3 bytes; can't
	// change by a reload. Default: the key store's.
	ServerID []byte
	// NoFile is the limit of open files (soft and hard) of each worker; 0
	// leaves what was inherited.
	NoFile uint64
	// NoProbe makes a ready worker serve without a probe.
	NoProbe bool
	// PIDFile is a further file that holds the supervisor's PID, besides the
	// one in the runtime directory. Default: none.
	PIDFile string
	// SocketBuffers are the sizes asked for; can't change by a reload.
	SocketBuffers SocketBuffers
	// IdleTimeout is the longest idle time of a connection that the workers
	// allow. Table entries unseen for twice as long are freed.
	IdleTimeout time.Duration
	// TicketRotation is the least age of the newest session ticket key at
	// which a new generation gets a newer one. Negative: never.
	TicketRotation time.Duration
	// Liveness is how long a worker of the current generation may go without a
	// sign of life before it is replaced. Negative: for ever.
	Liveness time.Duration
	// Probation is how long after an upgrade's handover a crash of a new worker
	// brings the program before back. Negative: never.
	Probation time.Duration
	// OrphanTimeout is how long workers serve on without a supervisor, should
	// it be killed and not come back. 0: without limit.
	OrphanTimeout time.Duration
	// Strict refuses what is otherwise served with a warning: an IPv6
	// listener on a host without IPv6.
	Strict bool
}

// ListenerSpec is one named listener.
type ListenerSpec struct {
	Name    string
	Address string // host:port; the host may be empty (any address)
	QUIC    bool   // UDP sockets
	TCP     bool   // a TCP socket
	// DrainTimeout is the longest drain of its connections after a reload.
	// Default, and at most: that of the generation.
	DrainTimeout time.Duration
	// Foreign: what it speaks is the business of the program that Command
	// names, so a probe can ask for nothing but a handshake.
	Foreign bool
}

// DrainSpec says how a generation ends that is no longer current.
type DrainSpec struct {
	Mode        string        // lifeline.DrainHold (default) or lifeline.DrainGoAway
	Timeout     time.Duration // longest drain after a reload
	StopTimeout time.Duration // longest drain at a graceful stop
	Window      time.Duration // goaway is spread over this long; default 0
	// Grace is the last part of a drain, in which connections that are left
	// are told goodbye and finish what they are at; what has not ended then is
	// closed. At most half of the drain. Negative: none.
	Grace time.Duration
	// MaxGenerations bounds how many drain at once.
	MaxGenerations int
	Overflow       string // OverflowWait (default) or OverflowEvict
}

// SocketBuffers are sizes in bytes; 0 asks for DefaultSocketBuffer.
type SocketBuffers struct {
	Receive int
	Send    int
}

// ProbeTarget is how a readiness probe reaches one listener of one worker.
type ProbeTarget struct {
	// Listener is the name from the configuration.
	Listener string
	// Conn is the client's socket: WriteTo pushes into the worker's packet
	// queue whatever address is given, ReadFrom returns what the worker
	// answers. The supervisor closes it.
	Conn net.PacketConn
	// Addr is where the client has to think that the server is.
	Addr net.Addr
	// Foreign is that of the listener.
	Foreign bool
}

func (o Options) withDefaults() (Options, error) {
	switch {
	case o.Load == nil:
		return o, fmt.Errorf("%w: Options.Load is missing", ErrUsage)
	case o.RuntimeDir == "":
		return o, fmt.Errorf("%w: Options.RuntimeDir is missing", ErrUsage)
	case o.StateDir == "":
		return o, fmt.Errorf("%w: Options.StateDir is missing", ErrUsage)
	}
	if o.Name == "" {
		o.Name = "default"
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	if o.Signals == nil {
		o.Signals = CatchSignals()
	}
	return o, nil
}

// withDefaults returns a copy with defaults filled in, or what is wrong.
func (s Spec) withDefaults() (*Spec, error) {
	if s.ConfigHash == "" {
		data, err := json.Marshal(s) // as it was given: defaults may become others
		if err != nil {
			return nil, fmt.Errorf("hash the configuration: %w", err)
		}
		s.ConfigHash = fmt.Sprintf("sha256:%x", sha256.Sum256(data))
	}
	setDefault(&s.Workers, 1)
	setDefault(&s.Steering, SteeringAuto)
	setDefault(&s.Drain.Mode, lifeline.DrainHold)
	setDefault(&s.Drain.Timeout, DefaultDrainTimeout)
	setDefault(&s.Drain.StopTimeout, DefaultStopTimeout)
	setDefault(&s.Drain.Grace, DefaultDrainGrace)
	setDefault(&s.Drain.MaxGenerations, DefaultMaxGenerations)
	setDefault(&s.Drain.Overflow, OverflowWait)
	setDefault(&s.Liveness, DefaultLiveness)
	setDefault(&s.ReadyTimeout, DefaultReadyTimeout)
	setDefault(&s.ProbeTimeout, DefaultProbeTimeout)
	setDefault(&s.StartTries, DefaultStartTries)
	setDefault(&s.Geometry, shm.DefaultGeometry())
	setDefault(&s.SocketBuffers.Receive, DefaultSocketBuffer)
	setDefault(&s.SocketBuffers.Send, DefaultSocketBuffer)
	setDefault(&s.IdleTimeout, DefaultIdleTimeout)
	setDefault(&s.TicketRotation, DefaultTicketRotation)
	setDefault(&s.Probation, DefaultProbation)
	return &s, s.validate()
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (s *Spec) validate() error {
	switch {
	case s.Workers < 1:
		return fmt.Errorf("%w: %d workers", ErrUsage, s.Workers)
	case s.Drain.Mode != lifeline.DrainHold && s.Drain.Mode != lifeline.DrainGoAway:
		return fmt.Errorf("%w: drain mode %q is neither hold nor goaway", ErrUsage, s.Drain.Mode)
	case s.Drain.Overflow != OverflowWait && s.Drain.Overflow != OverflowEvict:
		return fmt.Errorf("%w: drain overflow %q is neither wait nor evict", ErrUsage, s.Drain.Overflow)
	case s.Steering != SteeringAuto && s.Steering != SteeringQueue:
		return fmt.Errorf("%w: steering %q is neither auto nor queue", ErrUsage, s.Steering)
	case len(s.Listeners) == 0:
		return fmt.Errorf("%w: no listeners", ErrUsage)
	}
	seen := make(map[string]bool, len(s.Listeners))
	for _, l := range s.Listeners {
		if l.Name == "" || seen[l.Name] {
			return fmt.Errorf("%w: listener name %q is empty or used twice", ErrUsage, l.Name)
		}
		seen[l.Name] = true
		if !l.QUIC && !l.TCP {
			return fmt.Errorf("%w: listener %q has neither QUIC nor TCP", ErrUsage, l.Name)
		}
		if _, _, err := net.SplitHostPort(l.Address); err != nil {
			return fmt.Errorf("%w: listener %q: %w", ErrUsage, l.Name, err)
		}
	}
	if err := s.Geometry.Validate(); err != nil {
		return fmt.Errorf("%w: segment: %w", ErrUsage, err)
	}
	return nil
}

// maxQueueBytes bounds the addresses that the lanes of one queue take when there
// are more of them than the Spec asks for.
const maxQueueBytes = 256 << 20

// geometry is the Geometry asked for, with as many lanes as may be needed.
func (s *Spec) geometry() shm.Geometry {
	g := s.Geometry
	g.Lanes = max(g.Lanes, min(s.lanesNeeded(), packetqueue.MaxLanes, maxQueueBytes/g.LaneBytes))
	return g
}

// lanesNeeded is how many producers a queue may have at one time. A client that
// changes its address may come in at any reader, so each worker has a lane per
// QUIC listener, those of two generations during a handover; and so has the
// probe. One that finds no lane loses all packets that it has for that queue.
func (s *Spec) lanesNeeded() int {
	quic := 0
	for _, l := range s.Listeners {
		if l.QUIC {
			quic++
		}
	}
	return (2*s.Workers + 1) * quic
}

// restartKey returns the configuration key, if any, that differs between two
// Specs and can only change by a restart.
func restartKey(from, to *Spec) string {
	switch {
	case from.Geometry.Slots != to.Geometry.Slots:
		return "slots"
	case from.Geometry.TableEntries != to.Geometry.TableEntries:
		return "table.entries"
	case from.Geometry.Lanes != to.Geometry.Lanes:
		return "queue.lanes"
	case from.Geometry.LaneBytes != to.Geometry.LaneBytes:
		return "queue.lane_size"
	case string(from.ServerID) != string(to.ServerID):
		return "cid.server_id"
	case from.SocketBuffers.Receive != to.SocketBuffers.Receive:
		return "sockets.receive_buffer"
	case from.SocketBuffers.Send != to.SocketBuffers.Send:
		return "sockets.send_buffer"
	}
	return ""
}

// oneLine makes a reason fit one line of a log, a status or a terminal.
func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}
