package kit

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Status is the part of GET /v1/status that tests look at. It is written from
// the documented interface, not from the code under test.
type Status struct {
	Name        string           `json:"name"`
	Version     string           `json:"version"`
	PID         int              `json:"pid"`
	Config      ConfigStatus     `json:"config"`
	Listeners   []ListenerStatus `json:"listeners"`
	Generations []Generation     `json:"generations"`
	Table       TableStatus      `json:"table"`
	Counters    map[string]any   `json:"counters"`
	LastFailure *Failure         `json:"last_failure"`
	Program     string           `json:"program"`
	BuildID     string           `json:"build_id"`
	Operations  []Operation      `json:"operations"`
}

// Operation is something that takes a while.
type Operation struct {
	ID         uint64 `json:"id"`
	Kind       string `json:"kind"`
	State      string `json:"state"`
	Stage      string `json:"stage"`
	Reason     string `json:"reason"`
	Code       string `json:"code"`
	Generation uint32 `json:"generation"`
	Merged     int    `json:"merged"`
}

// ConfigStatus names the configuration in force.
type ConfigStatus struct {
	Path string `json:"path"`
	Hash string `json:"hash"`
}

// ListenerStatus is one listener with its addresses.
type ListenerStatus struct {
	Name    string         `json:"name"`
	UDP     []string       `json:"udp"`
	TCP     []string       `json:"tcp"`
	Sockets []SocketStatus `json:"sockets"`
}

// SocketStatus is one UDP socket of a listener. What is nil is not known.
type SocketStatus struct {
	Index         int    `json:"index"`
	Address       string `json:"address"`
	ReceiveBuffer *int   `json:"receive_buffer"`
	KernelDrops   *int   `json:"kernel_drops"`
}

// Generation is one generation and its workers.
type Generation struct {
	ID         uint32     `json:"id"`
	State      string     `json:"state"`
	ConfigHash string     `json:"config_hash"`
	Version    string     `json:"version"`
	Since      time.Time  `json:"since"`
	Deadline   *time.Time `json:"deadline"`
	Workers    []Worker   `json:"workers"`
}

// Worker is one worker process.
type Worker struct {
	Slot        uint16 `json:"slot"`
	Incarnation uint32 `json:"incarnation"`
	PID         int    `json:"pid"`
	Phase       string `json:"phase"`
	Restarts    int    `json:"restarts"`
	Hung        bool   `json:"hung"`
	Connections struct {
		QUIC int `json:"quic"`
		TCP  int `json:"tcp"`
	} `json:"connections"`
}

// TableStatus is the use of the connection-ID table.
type TableStatus struct {
	Capacity    int `json:"capacity"`
	Used        int `json:"used"`
	Handshaking int `json:"handshaking"`
}

// Failure is the last operation that failed.
type Failure struct {
	What   string `json:"what"`
	Reason string `json:"reason"`
}

// Current returns the current generation.
func (s Status) Current() (Generation, bool) {
	for _, g := range s.Generations {
		if g.State == "current" {
			return g, true
		}
	}
	return Generation{}, false
}

// Generation returns the generation with that number.
func (s Status) Generation(id uint32) (Generation, bool) {
	for _, g := range s.Generations {
		if g.ID == id {
			return g, true
		}
	}
	return Generation{}, false
}

// In returns the generations in a state.
func (s Status) In(state string) []Generation {
	var gs []Generation
	for _, g := range s.Generations {
		if g.State == state {
			gs = append(gs, g)
		}
	}
	return gs
}

// Workers returns the workers of all generations.
func (s Status) Workers() []Worker {
	var ws []Worker
	for _, g := range s.Generations {
		ws = append(ws, g.Workers...)
	}
	return ws
}

// Connections sums the live connections of a generation.
func (g Generation) Connections() (quic, tcp int) {
	for _, w := range g.Workers {
		quic += w.Connections.QUIC
		tcp += w.Connections.TCP
	}
	return quic, tcp
}

// Counter returns a counter by its path, for example "packets_received" or
// "packets_dropped.loop"; 0 when there is none of that name.
func (s Status) Counter(path ...string) uint64 {
	var v any = s.Counters
	for _, p := range path {
		m, ok := v.(map[string]any)
		if !ok {
			return 0
		}
		v = m[p]
	}
	n, _ := v.(json.Number)
	i, _ := n.Int64()
	return uint64(i)
}

func (s Status) dropped(reasons ...string) uint64 {
	var n uint64
	for _, r := range reasons {
		n += s.Counter("packets_dropped", r)
	}
	return n
}

// CheckSums verifies that every packet is accounted for: what was received
// was delivered, accepted, forwarded or dropped for a reason; what was
// forwarded was pulled or dropped for a reason; what was pulled was delivered,
// accepted or dropped as a loop. It is exact only while no packet moves.
//
// A worker that is killed takes what it has counted of its last batch of
// packets with it; so much may be missing for each crash.
func (s Status) CheckSums() error {
	slack := crashSlack * s.Counter("worker_crashes")
	c := func(name string) uint64 { return s.Counter(name) }
	received := c("packets_delivered") + c("packets_accepted") + c("packets_forwarded") +
		s.dropped("queue_full", "no_lane", "dead_target", "malformed", "no_listener", "reset_limited", "orphan", "invalid_token")
	pushed := c("packets_forwarded") + c("probe_pushed")
	taken := c("packets_pulled") + s.dropped("stale_record", "dead_queue")
	pulled := c("pulled_delivered") + c("pulled_accepted") + s.dropped("loop")
	return errors.Join(
		sum("received", c("packets_received"), received, slack),
		sum("forwarded", pushed, taken, slack),
		sum("pulled", c("packets_pulled"), pulled, slack))
}

// crashSlack is the most packets of one batch: eight buffers, each with a
// train of segments.
const crashSlack = 8 * 64

func sum(what string, have, want, slack uint64) error {
	if max(have, want)-min(have, want) <= slack {
		return nil
	}
	return fmt.Errorf("%s packets: %d counted, %d accounted for", what, have, want)
}

// ConnInfo is one connection as `holdfast conns` lists it.
type ConnInfo struct {
	ID         string    `json:"id"`
	Kind       string    `json:"kind"`
	Protocol   string    `json:"protocol"`
	Listener   string    `json:"listener"`
	Remote     string    `json:"remote"`
	Local      string    `json:"local"`
	Since      time.Time `json:"since"`
	Generation uint32    `json:"generation"`
	Slot       uint16    `json:"slot"`
}
