package admin

import "time"

// Status is the part of GET /v1/status that commands look at.
type Status struct {
	Name        string       `json:"name"`
	Version     string       `json:"version"`
	BuildID     string       `json:"build_id"`
	PID         int          `json:"pid"`
	Started     time.Time    `json:"started"`
	Config      Config       `json:"config"`
	Steering    Steering     `json:"steering"`
	Listeners   []Listener   `json:"listeners"`
	Generations []Generation `json:"generations"`
	Table       Table        `json:"table"`
	Counters    Counters     `json:"counters"`
	LastFailure *Failure     `json:"last_failure"`
	Program     string       `json:"program"`
	Operations  []Operation  `json:"operations"`
}

// Config names the configuration in force.
type Config struct {
	Path string `json:"path"`
	Hash string `json:"hash"`
}

// Steering says who steers packets.
type Steering struct {
	Mode   string `json:"mode"`
	Tier   string `json:"tier"`
	Reason string `json:"reason"`
}

// Listener is one listener with its addresses.
type Listener struct {
	Name    string   `json:"name"`
	UDP     []string `json:"udp"`
	TCP     []string `json:"tcp"`
	Sockets []Socket `json:"sockets"`
}

// Socket is one UDP socket of a listener.
type Socket struct {
	Index         int    `json:"index"`
	Address       string `json:"address"`
	ReceiveBuffer int    `json:"receive_buffer"`
	KernelDrops   uint64 `json:"kernel_drops"`
}

// StateCurrent is the state of the generation that accepts new connections.
const StateCurrent = "current"

// Generation is all workers of one start or reload.
type Generation struct {
	ID         uint32     `json:"id"`
	State      string     `json:"state"`
	Weight     float64    `json:"weight"`
	ConfigHash string     `json:"config_hash"`
	Version    string     `json:"version"`
	Since      time.Time  `json:"since"`
	Deadline   *time.Time `json:"deadline"`
	// Limits are the deadlines of listeners that end before, by name.
	Limits  map[string]time.Time `json:"listener_deadlines"`
	Workers []Worker             `json:"workers"`
	Canary  *Canary              `json:"canary"` // while it is one
}

// Canary is how a canary does beside the current generation.
type Canary struct {
	Share   float64    `json:"share"` // percent of new connections
	Since   time.Time  `json:"since"`
	Decides *time.Time `json:"decides,omitempty"`
	Auto    bool       `json:"auto"`
	Canary  Health     `json:"canary"`
	Current Health     `json:"current"`
	Fault   string     `json:"fault,omitempty"`
	Verdict string     `json:"verdict,omitempty"`
}

// Health is what a generation has done since the canary got its share.
type Health struct {
	Connections      uint64 `json:"connections"`
	HandshakesFailed uint64 `json:"handshakes_failed"`
	Requests         uint64 `json:"requests"`
	RequestErrors    uint64 `json:"request_errors"`
	Crashes          uint64 `json:"crashes"`
	ProbesFailed     uint64 `json:"probes_failed"`
}

// Connections sums the live connections.
func (g *Generation) Connections() (quic, tcp uint64) {
	for i := range g.Workers {
		quic += g.Workers[i].Connections.QUIC
		tcp += g.Workers[i].Connections.TCP
	}
	return quic, tcp
}

// Worker is one process.
type Worker struct {
	Slot        uint16 `json:"slot"`
	Incarnation uint32 `json:"incarnation"`
	PID         int    `json:"pid"`
	Phase       string `json:"phase"`
	Restarts    int    `json:"restarts"`
	Hung        bool   `json:"hung"`
	Connections struct {
		QUIC uint64 `json:"quic"`
		TCP  uint64 `json:"tcp"`
	} `json:"connections"`
}

// Table is the use of the connection-ID table.
type Table struct {
	Capacity    uint64 `json:"capacity"`
	Used        uint64 `json:"used"`
	Handshaking uint64 `json:"handshaking"`
}

// Counters are sums over the life of the service.
type Counters struct {
	PacketsReceived  uint64            `json:"packets_received"`
	PacketsDelivered uint64            `json:"packets_delivered"`
	PacketsAccepted  uint64            `json:"packets_accepted"`
	PacketsForwarded uint64            `json:"packets_forwarded"`
	PacketsPulled    uint64            `json:"packets_pulled"`
	PacketsDropped   map[string]uint64 `json:"packets_dropped"`
	SendErrors       uint64            `json:"send_errors"`
	ReloadsOK        uint64            `json:"reloads_ok"`
	ReloadsFailed    uint64            `json:"reloads_failed"`
	ReloadsMerged    uint64            `json:"reloads_merged"`
	UpgradesOK       uint64            `json:"upgrades_ok"`
	UpgradesFailed   uint64            `json:"upgrades_failed"`
	WorkerCrashes    uint64            `json:"worker_crashes"`
	Rollbacks        uint64            `json:"rollbacks"`
}

// Operation is something that takes a while.
type Operation struct {
	ID         uint64    `json:"id"`
	Kind       string    `json:"kind"`
	State      string    `json:"state"`
	Stage      string    `json:"stage"`
	Reason     string    `json:"reason"`
	Code       string    `json:"code"`
	Generation uint32    `json:"generation"`
	Asked      time.Time `json:"asked"`
	Version    string    `json:"version"`
	BuildID    string    `json:"build_id"`
	Warning    string    `json:"warning,omitempty"`
	Canary     *Canary   `json:"canary,omitempty"` // how it did, once there was one
}

// Ended reports whether nothing more happens to the operation.
func (o *Operation) Ended() bool { return o.State == "done" || o.State == "failed" }

// Err returns why the operation failed, as an *Error, or nil.
func (o *Operation) Err() error {
	if o.State != "failed" {
		return nil
	}
	return &Error{Code: o.Code, Reason: o.Reason}
}

// Failure is the last operation that failed.
type Failure struct {
	When   time.Time `json:"when"`
	What   string    `json:"what"`
	Reason string    `json:"reason"`
}

// Current returns the generation that accepts new connections, or nil.
func (s *Status) Current() *Generation {
	for i := range s.Generations {
		if s.Generations[i].State == StateCurrent {
			return &s.Generations[i]
		}
	}
	return nil
}

// Conn is one live connection.
type Conn struct {
	ID         string    `json:"id"`
	Kind       string    `json:"kind"` // "quic" or "tcp"
	Protocol   string    `json:"protocol"`
	Listener   string    `json:"listener"`
	Remote     string    `json:"remote"`
	Local      string    `json:"local"`
	Since      time.Time `json:"since"`
	Generation uint32    `json:"generation"`
	Slot       uint16    `json:"slot"`
}
