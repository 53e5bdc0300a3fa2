package supervisor

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-quic/holdfast/shm"
)

// Status is the answer of GET /v1/status.
type Status struct {
	Name        string             `json:"name"`
	Version     string             `json:"version"`
	BuildID     string             `json:"build_id"`
	PID         int                `json:"pid"`
	Started     time.Time          `json:"started"`
	Stopping    bool               `json:"stopping"`
	Degraded    bool               `json:"degraded"` // the current generation lacks workers
	Reload      string             `json:"reload"`   // idle, loading, waiting or starting
	Config      ConfigStatus       `json:"config"`   // of the current generation
	Steering    SteeringStatus     `json:"steering"`
	Listeners   []ListenerStatus   `json:"listeners"`
	Generations []GenerationStatus `json:"generations"` // that have not ended, newest first
	Table       TableStatus        `json:"table"`
	Slots       SlotsStatus        `json:"slots"`
	Counters    CountersStatus     `json:"counters"`
	LastFailure *Failure           `json:"last_failure"`
	Program     string             `json:"program"`    // what an upgrade runs when none is named
	Operations  []Operation        `json:"operations"` // under way, and the last that ended; oldest first
	// Probation is there while a crash takes the last upgrade back.
	Probation *ProbationStatus `json:"probation,omitempty"`
}

// ProbationStatus says how long which generation is on probation.
type ProbationStatus struct {
	Generation shm.Generation `json:"generation"`
	Until      time.Time      `json:"until"`
}

// ConfigStatus names a configuration.
type ConfigStatus struct {
	Path string `json:"path"`
	Hash string `json:"hash"`
}

// SteeringStatus says who steers packets.
type SteeringStatus struct {
	Mode   string `json:"mode"`   // what the configuration asks for
	Tier   string `json:"tier"`   // what is in use
	Reason string `json:"reason"` // why it is not the kernel
}

// ListenerStatus is one listener with the addresses that it is bound to.
type ListenerStatus struct {
	Name    string         `json:"name"`
	ID      uint8          `json:"id"`
	UDP     []string       `json:"udp"`
	TCP     []string       `json:"tcp"`
	Sockets []SocketStatus `json:"sockets"` // UDP only
}

// SocketStatus is one UDP socket, as the kernel describes it at that moment.
// What is null could not be asked.
type SocketStatus struct {
	Index         int    `json:"index"` // as in WorkerStatus.Readers
	Address       string `json:"address"`
	ReceiveBuffer *int   `json:"receive_buffer"` // bytes; of sockets.receive_buffer, what the host allows
	// KernelDrops counts packets for which there was no room, since the socket
	// was made. It begins again after 2^32-1.
	KernelDrops *uint32 `json:"kernel_drops"`
}

// GenerationStatus is one generation.
type GenerationStatus struct {
	ID         shm.Generation  `json:"id"`
	State      GenerationState `json:"state"`
	Weight     float64         `json:"weight"` // percent of new connections
	ConfigHash string          `json:"config_hash"`
	BuildID    string          `json:"build_id"`
	Version    string          `json:"version"`
	Since      time.Time       `json:"since"`
	Deadline   *time.Time      `json:"deadline"` // by which its last connection has ended
	// Limits are the deadlines of the listeners that end before, by name.
	Limits  map[string]time.Time `json:"listener_deadlines,omitempty"`
	Drain   string               `json:"drain,omitempty"` // hold or goaway, while it drains
	Timeout string               `json:"drain_timeout"`   // longest drain after the next reload
	Missing int                  `json:"missing"`         // workers that are being replaced
	// Canary is how the trial goes, while the generation is a canary.
	Canary *CanaryReport `json:"canary,omitempty"`
	// Before is the generation that a rollback would return to while this one
	// is current. It may have ended.
	Before  shm.Generation `json:"before,omitempty"`
	Workers []WorkerStatus `json:"workers"`
}

// WorkerStatus is one process.
type WorkerStatus struct {
	Slot        shm.SlotID      `json:"slot"`
	Incarnation shm.Incarnation `json:"incarnation"`
	PID         int             `json:"pid"`
	Phase       string          `json:"phase"`  // by its own account
	Wanted      string          `json:"wanted"` // by the supervisor's
	Started     time.Time       `json:"started"`
	Restarts    int             `json:"restarts"`
	Hung        bool            `json:"hung"` // no heartbeat for 3 s; a sibling reads its sockets
	Connections ConnsStatus     `json:"connections"`
	Readers     map[uint8][]int `json:"readers"` // UDP sockets that it reads, by listener ID
}

// ConnsStatus counts open connections.
type ConnsStatus struct {
	QUIC uint64 `json:"quic"`
	TCP  uint64 `json:"tcp"`
}

// TableStatus is how full the connection-ID table is.
type TableStatus struct {
	Capacity    int `json:"capacity"`
	Used        int `json:"used"`
	Handshaking int `json:"handshaking"`
}

// SlotsStatus is how many worker slots there are.
type SlotsStatus struct {
	Capacity int `json:"capacity"`
	Used     int `json:"used"`
}

// CountersStatus is what never goes down while the service lives.
type CountersStatus struct {
	PacketsReceived  uint64            `json:"packets_received"`
	PacketsDelivered uint64            `json:"packets_delivered"`
	PacketsAccepted  uint64            `json:"packets_accepted"`
	PacketsForwarded uint64            `json:"packets_forwarded"`
	PacketsPulled    uint64            `json:"packets_pulled"`
	PacketsDropped   map[string]uint64 `json:"packets_dropped"`
	PulledDelivered  uint64            `json:"pulled_delivered"`
	PulledAccepted   uint64            `json:"pulled_accepted"`
	ProbePushed      uint64            `json:"probe_pushed"`
	UnknownCID       uint64            `json:"unknown_cid"`
	UnknownVersion   uint64            `json:"unknown_version"`
	KernelDrops      uint64            `json:"kernel_drops"`
	Wakeups          uint64            `json:"wakeups"`
	DoorbellsRung    uint64            `json:"doorbells_rung"`
	BytesReceived    uint64            `json:"bytes_received"`
	BytesForwarded   uint64            `json:"bytes_forwarded"`
	QUICAccepted     uint64            `json:"quic_accepted"`
	TCPAccepted      uint64            `json:"tcp_accepted"`
	TableFull        uint64            `json:"table_full"`
	SendErrors       uint64            `json:"send_errors"`
	HandshakesFailed uint64            `json:"handshakes_failed"`
	Requests         uint64            `json:"requests"` // as programs count them
	RequestErrors    uint64            `json:"request_errors"`
	// QueueDelay counts pulled packets by the time that they were queued:
	// below 2^i microseconds; the last has no bound.
	QueueDelay     []uint64 `json:"queue_delay"`
	ReloadsOK      uint64   `json:"reloads_ok"`
	ReloadsFailed  uint64   `json:"reloads_failed"`
	ReloadsMerged  uint64   `json:"reloads_merged"`
	UpgradesOK     uint64   `json:"upgrades_ok"`
	UpgradesFailed uint64   `json:"upgrades_failed"`
	UpgradesMerged uint64   `json:"upgrades_merged"`
	WorkerCrashes  uint64   `json:"worker_crashes"`
	Rollbacks      uint64   `json:"rollbacks"`
}

// Failure is the last thing that was asked for and could not be done.
type Failure struct {
	When   time.Time `json:"when"`
	What   string    `json:"what"` // start, or the kind of an operation
	Reason string    `json:"reason"`
}

// status describes the moment. It runs in the loop.
func (s *Supervisor) status() *Status {
	usage := s.seg.Table().Usage()
	free := s.slots.free()
	st := &Status{
		Name: s.opt.Name, Version: s.opt.Version, BuildID: s.opt.BuildID, PID: s.env.getpid(), Started: s.started,
		Stopping: s.stopping != stopNone, Reload: s.reloadStage(),
		Config:      ConfigStatus{s.spec.ConfigPath, s.spec.ConfigHash},
		Steering:    steeringStatus(s.spec.Steering),
		Listeners:   []ListenerStatus{},
		Generations: []GenerationStatus{},
		Table:       TableStatus{Capacity: usage.Capacity, Used: usage.Used, Handshaking: usage.Handshaking},
		Slots:       SlotsStatus{Capacity: s.seg.Geometry().Slots, Used: s.seg.Geometry().Slots - free},
		Counters:    s.counters(),
		LastFailure: s.lastFailure,
		Program:     s.program,
		Operations:  s.operationList(),
		Probation:   s.probation.status(),
	}
	for _, l := range s.sockets.all() {
		st.Listeners = append(st.Listeners, s.listenerStatus(l))
	}
	for _, g := range slices.Backward(s.generations) {
		gs := s.generationStatus(g)
		st.Degraded = st.Degraded || g == s.current && gs.Missing > 0
		st.Generations = append(st.Generations, gs)
	}
	return st
}

// steeringStatus describes the only tier that there is.
func steeringStatus(mode string) SteeringStatus {
	st := SteeringStatus{Mode: mode, Tier: "queue", Reason: "this version steers by queues only"}
	if mode == SteeringQueue {
		st.Reason = "the configuration asks for queues"
	}
	return st
}

func (s *Supervisor) reloadStage() string {
	switch {
	case s.op == nil || s.op.Kind != OperationStart && s.op.Kind != OperationReload:
		return "idle"
	case s.op.waiting:
		return "waiting"
	case s.op.gen == nil:
		return "loading"
	}
	return "starting"
}

func (s *Supervisor) listenerStatus(l *listener) ListenerStatus {
	ls := ListenerStatus{Name: l.name, ID: l.id, UDP: []string{}, TCP: []string{}, Sockets: []SocketStatus{}}
	for _, set := range l.sets {
		if len(set.sockets) == 0 {
			continue
		}
		addresses := &ls.UDP
		if set.network == networkTCP {
			addresses = &ls.TCP
		}
		*addresses = append(*addresses, set.sockets[0].bound)
		if set.network != networkUDP {
			continue
		}
		for _, sock := range set.sockets {
			ls.Sockets = append(ls.Sockets, s.socketStatus(sock))
		}
	}
	return ls
}

// socketStatus asks the kernel, which counts for each socket by itself: no
// worker has to, and nothing is missed while none reads.
func (s *Supervisor) socketStatus(l *listenSocket) SocketStatus {
	st := SocketStatus{Index: l.index, Address: l.bound}
	if buffer, drops, err := s.env.socketUse(l.file); err == nil {
		st.ReceiveBuffer, st.KernelDrops = &buffer, &drops
	}
	return st
}

func (s *Supervisor) generationStatus(g *generation) GenerationStatus {
	gs := GenerationStatus{
		ID: g.id, State: g.state, ConfigHash: g.spec.ConfigHash, BuildID: g.build, Version: g.ver,
		Since: g.since, Timeout: g.spec.Drain.Timeout.String(), Workers: []WorkerStatus{},
	}
	gs.Before = g.before
	switch {
	case g == s.canary:
		gs.Weight, gs.Canary = g.trial.percent, s.report(g)
	case g == s.current && s.canary != nil:
		gs.Weight = 100 - s.canary.trial.percent
	case g == s.current:
		gs.Weight = 100
	}
	if g.state == GenerationDraining {
		deadline := g.deadline
		gs.Deadline, gs.Drain = &deadline, g.mode
		for _, w := range g.wants {
			if span, ok := g.limits[w.listener.id]; ok {
				if gs.Limits == nil {
					gs.Limits = map[string]time.Time{}
				}
				gs.Limits[w.spec.Name] = span.end
			}
		}
	}
	for _, m := range g.members {
		if m.w == nil || m.w.state != workerServing {
			gs.Missing++
		}
	}
	if g.state != GenerationCurrent && g.state != GenerationCanary {
		gs.Missing = 0
	}
	for _, w := range s.workersOf(g) {
		r := s.seg.Directory().Record(w.slot)
		gs.Workers = append(gs.Workers, WorkerStatus{
			Slot: w.slot, Incarnation: w.incarnation, PID: w.proc.PID(), Phase: r.Phase.String(), Wanted: w.state.String(),
			Started: w.started, Restarts: w.member.restarts, Hung: w.pulse.hung,
			Connections: ConnsStatus{QUIC: r.QUICConns, TCP: r.TCPConns},
			Readers:     w.readers.udp,
		})
	}
	return gs
}

// workersOf returns the processes of g that have not been reaped, by their
// age.
func (s *Supervisor) workersOf(g *generation) []*worker {
	var out []*worker
	for w := range s.workers {
		if w.gen == g {
			out = append(out, w)
		}
	}
	slices.SortFunc(out, func(a, b *worker) int { return cmp.Compare(a.incarnation, b.incarnation) })
	return out
}

// drops are the counters of lost packets by the names of the reasons.
var drops = map[string]shm.Counter{
	"queue_full": shm.DropQueueFull, "no_lane": shm.DropNoLane, "dead_target": shm.DropDeadTarget,
	"stale_record": shm.DropStaleRecord, "dead_queue": shm.DropDeadQueue, "loop": shm.DropLoop,
	"malformed": shm.DropMalformed, "no_listener": shm.DropNoListener, "reset_limited": shm.DropResetLimited,
	"orphan": shm.DropOrphan, "invalid_token": shm.DropInvalidToken,
}

func (s *Supervisor) counters() CountersStatus {
	t := s.seg.Totals()
	c := CountersStatus{
		PacketsReceived: t[shm.PacketsReceived], PacketsDelivered: t[shm.PacketsDelivered],
		PacketsAccepted: t[shm.PacketsAccepted], PacketsForwarded: t[shm.PacketsForwarded],
		PacketsPulled: t[shm.PacketsPulled], PacketsDropped: make(map[string]uint64, len(drops)),
		PulledDelivered: t[shm.PulledDelivered], PulledAccepted: t[shm.PulledAccepted], ProbePushed: t[shm.ProbePushed],
		UnknownCID: t[shm.UnknownCID], UnknownVersion: t[shm.UnknownVersion], KernelDrops: t[shm.KernelDrops],
		Wakeups: t[shm.Wakeups], DoorbellsRung: t[shm.DoorbellsRung],
		BytesReceived: t[shm.BytesReceived], BytesForwarded: t[shm.BytesForwarded],
		QUICAccepted: t[shm.QUICAccepted], TCPAccepted: t[shm.TCPAccepted], TableFull: t[shm.TableFull], SendErrors: t[shm.SendErrors],
		HandshakesFailed: t[shm.HandshakesFailed], Requests: t[shm.Requests], RequestErrors: t[shm.RequestErrors],
		QueueDelay: slices.Clone(t[shm.QueueDelay : shm.QueueDelay+shm.QueueDelayBuckets]),
		ReloadsOK:  s.counts.reloadsOK, ReloadsFailed: s.counts.reloadsFailed, ReloadsMerged: s.counts.reloadsMerged,
		UpgradesOK: s.counts.upgradesOK, UpgradesFailed: s.counts.upgradesFailed, UpgradesMerged: s.counts.upgradesMerged,
		WorkerCrashes: s.counts.crashes, Rollbacks: s.counts.rollbacks,
	}
	for name, counter := range drops {
		c.PacketsDropped[name] = t[counter]
	}
	return c
}

// parseNumber reads a number of a query; absent gives 0 and false.
func parseNumber(text string, bits int) (n uint64, given bool, err error) {
	if text == "" {
		return 0, false, nil
	}
	if n, err = strconv.ParseUint(text, 10, bits); err != nil {
		return 0, false, fmt.Errorf("found %q, expected a whole number from 0 to %d", text, uint64(1)<<bits-1)
	}
	return n, true, nil
}
