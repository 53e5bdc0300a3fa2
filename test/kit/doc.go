// Package kit is what the scenario tests are made of: real supervisors and
// workers, clients that hold connections and count every error and gap, and
// the means to disturb both.
//
// # Processes
//
// A test binary plays every role. TestMain calls [Main] with the roles it can
// play; a child started with HOLDFAST_TEST_ROLE=holdfast is the product's own
// command line, so supervisor and workers are the code under test and nothing
// else. [Start] writes a configuration, runs `holdfast run` on a free port of
// loopback and returns when the first generation is current. The [Instance]
// stops by itself when the test ends, and on the way out it checks what must
// hold after every scenario: the segment is without fault, the counters add
// up, no log holds a panic or a data race, and no process, descriptor, file or
// bound port is left behind. A worker can be made to misbehave at its start,
// see [Instance.Misbehave].
//
// # Clients
//
// [Dial] opens one QUIC connection with HTTP/3 on a UDP socket of its own. Its
// [Client] never reconnects; it can change its port as a NAT would
// ([Client.Rebind]) or move on purpose to a spare connection ID
// ([Client.Migrate]), resume with 0-RTT and keep address tokens
// ([ClientOptions]). [StartFleet] holds many of them, or TCP connections, with
// a request each interval; its [Report] says what was lost and why, what
// failed, how long the gaps were and whether a connection was ever answered by
// a process that does not own it. [StartProber] opens new connections at a
// steady rate. [Transfer] is a long download or upload whose bytes are
// checked.
//
// # Network
//
// [StartRelay] stands between clients and server and drops, delays, reorders,
// duplicates or holds back packets, and rewrites source ports.
// [Datagram] and friends make packets by hand. [NewNamespace] gives a network
// namespace where addresses and families matter.
//
// # Rules
//
// Waiting is always for a condition ([Eventually]), never for time. Reports
// are values: stop a fleet, look at its report. Everything that a test starts
// is bound to the test by t.Cleanup, in the order of its start.
//
// HOLDFAST_SOAK=1 runs the scenarios at their full length; see [Scale].
package kit
