// Package supervisor runs generations of workers behind one set of listening
// sockets and never touches a client's packet.
//
// It owns what must outlive a worker: the instance lock, the listening
// sockets, the shared segment, the doorbells, the keys and the wanted state.
// Workers own connections. The two meet on the lifeline (commands and
// descriptors) and in the segment (what the packet path has to read).
//
// # Goroutines
//
// One goroutine, the one in [Supervisor.Run], owns all state. Everything else
// only turns something that happened into an event for it:
//
//   - signals: one goroutine reads the channel of [CatchSignals];
//   - per worker: one receives from the lifeline, one sends to it (so that a
//     worker that does not read can't block the loop), one waits for the
//     process to end;
//   - per readiness probe: one runs the probe function;
//   - per reload: one loads the configuration;
//   - the admin API: the goroutines of net/http. A handler hands the loop a
//     function and waits for its answer; writing to the client happens
//     outside the loop;
//   - timers.
//
// What follows from an event is looked up in the tables of state.go, which are
// pure and tested cell by cell. What the workers are to read is not commanded
// step by step either: desired computes it from the generations' states, and
// reconcile sends the difference.
//
// # Never
//
// The package never imports package worker, the gateway, package config or a
// QUIC implementation. The readiness probe and the configuration come in as
// functions of [Options].
package supervisor
