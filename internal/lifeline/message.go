package lifeline

import (
	"fmt"
	"io"
	"time"
)

// Protocol versions that this build speaks. Both ends name their range in
// Hello and Welcome, and again in Resume and Resumed; the highest version in
// both ranges is used, and an empty intersection is refused before anything else
// is exchanged.
const (
	ProtocolMin = 1
	ProtocolMax = 2

	// ProtocolHandover is the first version with Welcome.Handover, Resume and
	// KindUndrain. A worker that speaks less is welcomed without Handover and
	// ends with its supervisor; one that drains does so for good.
	ProtocolHandover = 2
)

// Kind names a message. It is the discriminator of the JSON envelope.
type Kind string

// Messages from a worker to its supervisor.
const (
	KindHello        Kind = "hello"         // first message of a worker
	KindReady        Kind = "ready"         // it can serve; never sent before Welcome
	KindReadersSet   Kind = "readers_set"   // acknowledges Readers
	KindPeerSet      Kind = "peer_set"      // acknowledges Peer
	KindNonceRequest Kind = "nonce_request" // wants another nonce range
	KindConnsReply   Kind = "conns_reply"   // answers ConnsQuery and CloseConn
	KindFailed       Kind = "failed"        // it cannot serve; the process exits next
	KindDrained      Kind = "drained"       // nothing left to serve; the process exits next
	KindResume       Kind = "resume"        // first message to the next supervisor; carries the descriptors
)

// Messages from a supervisor to a worker.
const (
	KindWelcome    Kind = "welcome"     // answers Hello; carries the descriptors
	KindRefuse     Kind = "refuse"      // answers Hello: the worker exits; or Resume: it serves on without a supervisor
	KindResumed    Kind = "resumed"     // answers Resume; the connection is the lifeline from here on
	KindReaders    Kind = "readers"     // which reader sockets to read, whether to accept TCP
	KindSocket     Kind = "socket"      // one more socket of a listener (one descriptor)
	KindDropSocket Kind = "drop_socket" // close a socket that was retired
	KindPeer       Kind = "peer"        // doorbell of another slot (one descriptor)
	KindDrain      Kind = "drain"       // serve what is there, accept nothing
	KindUndrain    Kind = "undrain"     // current again: take the drain back
	KindStop       Kind = "stop"        // end all connections in order within the grace
	KindNonceLease Kind = "nonce_lease" // answers NonceRequest
	KindConnsQuery Kind = "conns_query" // list connections
	KindCloseConn  Kind = "close_conn"  // end one connection
	KindReopenLogs Kind = "reopen_logs" // open log files again
)

// Message is the envelope: exactly one of the pointers that matches Kind is
// set; kinds without content have none.
type Message struct {
	Kind Kind `json:"kind"`

	Hello      *Hello      `json:"hello,omitempty"`
	Welcome    *Welcome    `json:"welcome,omitempty"`
	Refuse     *Refuse     `json:"refuse,omitempty"`
	Readers    *Readers    `json:"readers,omitempty"`
	ReadersSet *ReadersSet `json:"readers_set,omitempty"`
	Socket     *Socket     `json:"socket,omitempty"`
	Peer       *Peer       `json:"peer,omitempty"`
	Drain      *Drain      `json:"drain,omitempty"`
	Stop       *Stop       `json:"stop,omitempty"`
	NonceLease *NonceLease `json:"nonce_lease,omitempty"`
	ConnsQuery *ConnsQuery `json:"conns_query,omitempty"`
	ConnsReply *ConnsReply `json:"conns_reply,omitempty"`
	CloseConn  *CloseConn  `json:"close_conn,omitempty"`
	Failed     *Failed     `json:"failed,omitempty"`
	Resume     *Resume     `json:"resume,omitempty"`
	Resumed    *Resumed    `json:"resumed,omitempty"`
}

// Hello introduces a worker.
type Hello struct {
	ProtocolMin int    `json:"protocol_min"`
	ProtocolMax int    `json:"protocol_max"`
	ABIMajor    uint16 `json:"abi_major"` // of the segment, package shm
	ABIMinor    uint16 `json:"abi_minor"`
	Version     string `json:"version"`
	BuildID     string `json:"build_id"`
	PID         int    `json:"pid"`
}

// Welcome makes a process the worker of a slot. Its descriptors arrive with
// the message in this order: segment, configuration payload (a sealed memfd),
// own doorbell, then one per entry of Peers, then one per entry of Sockets, and
// last, when Handover is set, the listening socket of the slot.
type Welcome struct {
	Protocol    int        `json:"protocol"`
	Slot        uint16     `json:"slot"`
	Incarnation uint32     `json:"incarnation"`
	Generation  uint32     `json:"generation"`
	ConfigHash  string     `json:"config_hash"`
	Workers     int        `json:"workers"`   // processes in this generation
	MaxProcs    int        `json:"max_procs"` // GOMAXPROCS; 0 leaves it alone
	Listeners   []Listener `json:"listeners"`
	Peers       []uint16   `json:"peers"` // slots whose doorbells follow
	Sockets     []Socket   `json:"sockets"`
	Keys        Keys       `json:"keys"`
	Nonces      NonceLease `json:"nonces"`
	// Handover: when the lifeline ends, the worker serves on and accepts its
	// next supervisor on the listening socket. Without it, it says goodbye.
	Handover bool `json:"handover,omitempty"`
	// OrphanTimeout is how long it serves without a supervisor; 0: without
	// limit.
	OrphanTimeout time.Duration `json:"orphan_timeout,omitempty"`
}

// Resume introduces a worker that has lost its supervisor to the next one, which
// has connected to its handover socket. It gives back all that it was given. Its
// descriptors arrive with the message in this order: segment, configuration
// payload, own doorbell, handover socket, the program that it runs (opened for
// reading), then one per entry of Peers, then one per entry of Sockets.
type Resume struct {
	ProtocolMin int    `json:"protocol_min"`
	ProtocolMax int    `json:"protocol_max"`
	ABIMajor    uint16 `json:"abi_major"` // of the segment, package shm
	ABIMinor    uint16 `json:"abi_minor"`
	Version     string `json:"version"`
	BuildID     string `json:"build_id"`
	PID         int    `json:"pid"`
	Slot        uint16 `json:"slot"`
	Incarnation uint32 `json:"incarnation"`
	Generation  uint32 `json:"generation"`
	ConfigHash  string `json:"config_hash"`
	Ready       bool   `json:"ready"`
	Draining    bool   `json:"draining"`
	Stopping    bool   `json:"stopping"`
	// ReadersSeq is that of the last Readers which took effect.
	ReadersSeq uint64   `json:"readers_seq"`
	Peers      []uint16 `json:"peers"`
	Sockets    []Socket `json:"sockets"`
}

// Resumed makes the connection on which Resume came the worker's lifeline. What
// is wanted of the worker follows in the usual messages: sockets, Readers with a
// Seq above that in Resume, doorbells, Drain or Undrain, Stop. The worker asks
// again for what it had asked for and not got. What it still owes to orders of
// its former supervisor, such as a ReadersSet, it keeps to itself.
type Resumed struct {
	Protocol int `json:"protocol"`
}

// Listener is one named listener as the supervisor knows it.
type Listener struct {
	ID   uint8  `json:"id"`   // channel of the packet queue, bit in the directory's listener set; stable while the service lives
	Name string `json:"name"` // from the configuration
	QUIC bool   `json:"quic"`
	TCP  bool   `json:"tcp"`
}

// Socket describes one listening socket of a listener.
type Socket struct {
	Listener uint8  `json:"listener"`           // Listener.ID
	Network  string `json:"network"`            // "udp" or "tcp"
	Address  string `json:"address"`            // bound address, host:port
	Index    int    `json:"index"`              // number within (listener, network); never reused while the service lives
	Retiring bool   `json:"retiring,omitempty"` // read it while it is there, but do not send from it if there is another
}

// Readers is the whole set of sockets that a worker is to read, by listener
// ID and socket index; what is not named is not read. It is declarative, so
// repeating it is harmless.
type Readers struct {
	Seq uint64          `json:"seq"`
	UDP map[uint8][]int `json:"udp"`
	TCP map[uint8][]int `json:"tcp"` // sockets to accept from
}

// ReadersSet acknowledges Readers after the change has taken effect.
type ReadersSet struct {
	Seq uint64 `json:"seq"`
}

// Peer names the slot whose doorbell is attached, or is acknowledged.
type Peer struct {
	Slot uint16 `json:"slot"`
}

// Drain modes.
const (
	DrainHold   = "hold"   // connections live on until their clients end them
	DrainGoAway = "goaway" // clients are asked to leave
)

// Drain tells a worker that its generation is no longer current. It may be
// repeated: hold to goaway starts the goodbye, goaway to hold cancels what of
// it has not been sent.
type Drain struct {
	Mode     string        `json:"mode"`
	Window   time.Duration `json:"window"`   // goaway is spread over this long
	Deadline time.Time     `json:"deadline"` // by which all is to have ended, for information; Stop comes before
	// Linger is how long from now on a worker that has nothing left to serve
	// stays all the same, because its generation may become current again.
	Linger time.Duration `json:"linger,omitempty"`
	// Listeners, by ID, whose connections are to end before the others. The
	// worker sees to it by itself.
	Listeners map[uint8]Limit `json:"listeners,omitempty"`
}

// Limit says when the connections of one listener end. Both count from the
// moment at which the order was given.
type Limit struct {
	Goodbye time.Duration `json:"goodbye"` // clients are told from here on
	End     time.Duration `json:"end"`     // what is left is closed
}

// Stop tells a worker to end: goodbye, then CONNECTION_CLOSE, within Grace.
type Stop struct {
	Grace time.Duration `json:"grace"`
}

// NonceLease grants the connection-ID nonces From <= n < To, once and for ever.
type NonceLease struct {
	From uint64 `json:"from"`
	To   uint64 `json:"to"`
}

// Keys are the shared secrets. They travel here and nowhere else: never in
// the segment, logs, status or errors.
type Keys struct {
	StatelessReset []byte   `json:"stateless_reset"` // 32 bytes
	Token          []byte   `json:"token"`           // 32 bytes: Retry and NEW_TOKEN
	Tickets        [][]byte `json:"tickets"`         // 32 bytes each; the first one encrypts
	CID            []byte   `json:"cid"`             // 16 bytes: AES-128
	ServerID       []byte   `json:"server_id"`       // QUIC-LB server ID of this host
	CIDConfig      uint8    `json:"cid_config"`      // QUIC-LB configuration bits, 0-6
}

// Format implements [fmt.Formatter]: no verb shows a secret, so that a message
// which ends up in a log or an error by mistake is harmless.
func (Keys) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, "keys not shown") }

// ConnsQuery asks for the connection list.
type ConnsQuery struct {
	Seq uint64 `json:"seq"`
}

// CloseConn ends the connection with the given ID (ConnInfo.ID).
type CloseConn struct {
	Seq uint64 `json:"seq"`
	ID  string `json:"id"`
}

// ConnsReply answers ConnsQuery (Conns) and CloseConn (Error when there is no
// such connection). Long lists come in several replies; Last marks the end.
type ConnsReply struct {
	Seq   uint64     `json:"seq"`
	Conns []ConnInfo `json:"conns,omitempty"`
	Last  bool       `json:"last"`
	Error string     `json:"error,omitempty"`
}

// ConnInfo is one live connection of a worker.
type ConnInfo struct {
	ID       string    `json:"id"`       // unique while the service lives: SLOT.INCARNATION.NUMBER
	Kind     string    `json:"kind"`     // "quic" or "tcp"
	Protocol string    `json:"protocol"` // ALPN once known
	Listener string    `json:"listener"`
	Remote   string    `json:"remote"`
	Local    string    `json:"local"`
	Since    time.Time `json:"since"`
}

// Refuse says why a process does not become a worker.
type Refuse struct {
	Reason string `json:"reason"`
}

// Failed carries the reason why a worker cannot serve.
type Failed struct {
	Reason string `json:"reason"`
}
