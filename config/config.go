package config

import (
	"runtime"
	"slices"
	"time"
)

// Limits that other packages rely on.
const (
	// MaxListeners is the number of listeners that one instance can have: a
	// listener is a bit in the segment's listener set.
	MaxListeners = 64
	// MaxWorkers is the number of processes that one generation can have.
	MaxWorkers = 256
	// ReservedPath is the path prefix that the gateway keeps for itself, for
	// the readiness probe among others. No route may lie below it.
	ReservedPath = "/.holdfast/"
)

// Values of the keys that take one of a few words.
const (
	ProtocolHTTP3 = "h3"
	ProtocolHTTP2 = "h2"
	ProtocolHTTP1 = "http/1.1"
	ProtocolQUIC  = "quic" // what a worker of one's own speaks over QUIC
	ProtocolTCP   = "tcp"  // what a worker of one's own speaks over TCP

	SteeringAuto  = "auto"
	SteeringQueue = "queue"

	DrainHold   = "hold"
	DrainGoAway = "goaway"

	OverflowWait  = "wait"
	OverflowEvict = "evict"

	ReloadGeneration = "generation"

	RetryOff    = "off"
	RetryAlways = "always"

	LogStderr = "stderr" // a log goes to standard error
	LogOff    = "off"    // a log is not written
)

// Size is a number of bytes.
type Size int64

// Units of Size.
const (
	KiB Size = 1 << 10
	MiB Size = 1 << 20
	GiB Size = 1 << 30
)

// Config is one whole configuration: defaults filled in, paths absolute.
type Config struct {
	Listeners []Listener `yaml:"listeners"`
	Workers   int        `yaml:"workers"` // processes per generation; 0 = one per CPU, see WorkerCount
	Worker    Worker     `yaml:"worker"`
	User      string     `yaml:"user"`  // name or number; empty = the supervisor's own, see Account
	Group     string     `yaml:"group"` // name or number; empty = the user's primary one
	Steering  string     `yaml:"steering"`
	Routes    []Route    `yaml:"routes"`
	Drain     Drain      `yaml:"drain"`
	Reload    Reload     `yaml:"reload"`
	Upgrade   Upgrade    `yaml:"upgrade"`
	Start     Start      `yaml:"start"`
	Liveness  Liveness   `yaml:"liveness"`
	Table     Table      `yaml:"table"`
	Queue     Queue      `yaml:"queue"`
	Sockets   Sockets    `yaml:"sockets"`
	CID       CID        `yaml:"cid"`
	Limits    Limits     `yaml:"limits"`
	AccessLog AccessLog  `yaml:"access_log"`
	Log       Log        `yaml:"log"`
	PIDFile   string     `yaml:"pid_file"` // absolute; empty = only the one in the runtime directory
	Strict    bool       `yaml:"strict"`

	src     source
	places  map[string]place // of the keys that need a restart, and of user
	account *Account
}

// Path returns the absolute path of the file, or the name given to Parse.
func (c *Config) Path() string { return c.src.name }

// WorkerCount returns the number of processes per generation, with auto
// resolved for this machine.
func (c *Config) WorkerCount() int {
	if c.Workers > 0 {
		return c.Workers
	}
	return min(runtime.NumCPU(), MaxWorkers)
}

// DrainTimeout returns how long a draining generation may live: the longest
// of its listeners' limits.
func (c *Config) DrainTimeout() time.Duration {
	var d time.Duration
	for i := range c.Listeners {
		d = max(d, c.Listeners[i].DrainTimeout)
	}
	return d
}

// IdleTimeout returns the longest idle timeout of the listeners that speak
// QUIC, 0 when none does.
func (c *Config) IdleTimeout() time.Duration {
	var d time.Duration
	for i := range c.Listeners {
		if l := &c.Listeners[i]; l.UDP() {
			d = max(d, l.QUIC.IdleTimeout)
		}
	}
	return d
}

// Listener returns the listener of that name.
func (c *Config) Listener(name string) (*Listener, bool) {
	for i := range c.Listeners {
		if c.Listeners[i].Name == name {
			return &c.Listeners[i], true
		}
	}
	return nil, false
}

// Listener is one address that clients connect to.
type Listener struct {
	Name          string        `yaml:"name"`
	Address       string        `yaml:"address"`   // host:port; an empty host means all addresses
	Protocols     []string      `yaml:"protocols"` // never empty, no repeats
	TLS           TLS           `yaml:"tls"`
	QUIC          QUIC          `yaml:"quic"`
	AdvertisePort int           `yaml:"advertise_port"` // port in Alt-Svc; the port of Address by default
	DrainTimeout  time.Duration `yaml:"drain_timeout"`  // drain.timeout by default
}

// Has reports whether the listener speaks the protocol.
func (l *Listener) Has(protocol string) bool {
	return slices.Contains(l.Protocols, protocol)
}

// UDP reports whether the listener needs UDP sockets.
func (l *Listener) UDP() bool { return l.Has(ProtocolHTTP3) || l.Has(ProtocolQUIC) }

// TCP reports whether the listener needs TCP sockets.
func (l *Listener) TCP() bool {
	return l.Has(ProtocolHTTP2) || l.Has(ProtocolHTTP1) || l.Has(ProtocolTCP)
}

// TLS says which certificates a listener has: SelfSigned, or at least one.
type TLS struct {
	SelfSigned   bool          `yaml:"self_signed"`
	Certificates []Certificate `yaml:"certificates"`

	made Certificate // by SetSelfSigned
}

// Certificate is a certificate chain with its key. The files were read when
// the configuration was, so a worker that starts later serves the same ones.
type Certificate struct {
	Cert string `yaml:"cert"` // absolute path
	Key  string `yaml:"key"`  // absolute path

	chain, private []byte
}

// PEM returns the content of both files as it was when the configuration was
// read; they belong together. The slices are shared and must not be written
// to. The key must not be logged.
func (c *Certificate) PEM() (chain, key []byte) { return c.chain, c.private }

// QUIC holds the transport settings of a listener that speaks h3 or quic.
type QUIC struct {
	IdleTimeout        time.Duration `yaml:"idle_timeout"`
	KeepAlive          time.Duration `yaml:"keep_alive"` // 0 = none sent
	MaxIncomingStreams int           `yaml:"max_incoming_streams"`
	Retry              string        `yaml:"retry"` // RetryOff or RetryAlways
	Allow0RTT          bool          `yaml:"allow_0rtt"`
}

// Route says what answers the requests of one path. Exactly one of the
// pointers is set.
type Route struct {
	Path      string     `yaml:"path"`
	Respond   *Respond   `yaml:"respond"`
	Files     *Files     `yaml:"files"`
	Proxy     *Proxy     `yaml:"proxy"`
	Whoami    *Whoami    `yaml:"whoami"`
	Speedtest *Speedtest `yaml:"speedtest"`
}

// Respond answers with fixed content.
type Respond struct {
	Status  int               `yaml:"status"`
	Body    string            `yaml:"body"`
	Headers map[string]string `yaml:"headers"`
}

// Files serves a directory.
type Files struct {
	Root string `yaml:"root"` // absolute, unless Builtin
}

// Proxy passes requests on.
type Proxy struct {
	Upstreams []string `yaml:"upstreams"` // http or https URLs, at least one
}

// Whoami answers with the identity of the process that serves the request.
type Whoami struct{}

// Speedtest sends and counts bytes.
type Speedtest struct {
	MaxBytes Size `yaml:"max_bytes"`
}

// Worker says which program the workers run.
type Worker struct {
	Command []string `yaml:"command"` // program and arguments; nil = the built-in gateway
}

// Drain says how a generation ends that is no longer current.
type Drain struct {
	Mode           string        `yaml:"mode"`          // DrainHold or DrainGoAway
	Timeout        time.Duration `yaml:"timeout"`       // default of Listener.DrainTimeout
	StopTimeout    time.Duration `yaml:"stop_timeout"`  // in place of Timeout at a graceful stop
	Grace          time.Duration `yaml:"grace"`         // last part of a drain, for goodbyes
	GoAwayWindow   time.Duration `yaml:"goaway_window"` // goodbyes are spread over this long
	MaxGenerations int           `yaml:"max_generations"`
	Overflow       string        `yaml:"overflow"` // OverflowWait or OverflowEvict
	Follow         bool          `yaml:"follow"`
}

// Reload says how a changed configuration takes effect.
type Reload struct {
	Mode        string        `yaml:"mode"`
	MinInterval time.Duration `yaml:"min_interval"` // 0 = none
}

// Upgrade says how a new program takes the place of the one that runs.
type Upgrade struct {
	Probation time.Duration `yaml:"probation"` // 0 = none
}

// Start says what a new generation must show before it becomes current.
type Start struct {
	ReadyTimeout time.Duration `yaml:"ready_timeout"`
	Probe        bool          `yaml:"probe"`
	ProbeTimeout time.Duration `yaml:"probe_timeout"`
	Tries        int           `yaml:"tries"`
}

// Liveness says when a worker that hangs is given up.
type Liveness struct {
	Timeout time.Duration `yaml:"timeout"` // 0 = never
}

// Table is the connection-ID table.
type Table struct {
	Entries int `yaml:"entries"` // a power of two
}

// Queue is the packet queue that each worker has.
type Queue struct {
	Lanes    int  `yaml:"lanes"`
	LaneSize Size `yaml:"lane_size"` // a power of two
}

// Sockets holds the options of the UDP sockets.
type Sockets struct {
	ReceiveBuffer Size `yaml:"receive_buffer"` // wanted; the kernel may give less
	SendBuffer    Size `yaml:"send_buffer"`    // wanted; the kernel may give less
}

// CID is the host's part of the connection IDs (QUIC-LB).
type CID struct {
	ServerID []byte `yaml:"server_id"` // 1 to 3 bytes; nil = the one in the state directory
}

// Limits holds resource limits of the worker processes.
type Limits struct {
	NoFile int `yaml:"nofile"` // 0 = as inherited
}

// AccessLog is the log of requests.
type AccessLog struct {
	Path   string `yaml:"path"` // LogStderr, LogOff or an absolute path
	Format string `yaml:"format"`
}

// Log is the log of the supervisor and the workers.
type Log struct {
	Level  string `yaml:"level"`
	Path   string `yaml:"path"` // LogStderr or an absolute path
	Format string `yaml:"format"`
}
