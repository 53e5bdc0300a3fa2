// Package shm is the shared segment: the memory that a supervisor and all of
// its workers have mapped at once.
//
//	+-----------+---------------------------------------------------------+
//	| header    | magic (written last), ABI, geometry, hash secret        |
//	| admission | which generations take new connections, and whose turn  |
//	| directory | one record per worker slot: who lives there, how far    |
//	| counters  | one row per slot and one of the supervisor; only grow   |
//	| table     | connection ID -> owner                                  |
//	| queues    | one region per slot, for package packetqueue            |
//	+-----------+---------------------------------------------------------+
//
// Supervisor writes who (assignment, admission), workers write how far (phase,
// heartbeat, counters); everything that many may write, which is the table,
// moves only by compare-and-swap. docs/shm-abi.md lists offset, writer and
// ordering of every field, and a test holds that page and this code together.
//
// Nothing that is read from the segment is trusted. Sizes are taken from a copy
// of the geometry that was checked when the segment was attached; a damaged
// word costs a miss or an error, never a panic and never an access outside of
// the segment.
//
// Same ABI major: attach. Another major: [ErrABIVersion], before anything is
// written. A minor version only gives a meaning to reserved, zero bytes.
//
// The package starts no goroutine, takes no lock on a packet's path, and knows
// neither QUIC nor processes: whether a process is dead is said by its caller.
package shm
