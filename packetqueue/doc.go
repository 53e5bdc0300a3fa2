// Package packetqueue is the inbox of one worker: a set of byte rings in shared
// memory through which other processes hand it packets that arrived at the
// wrong place.
//
// A queue is a region of bytes. It holds one block of wake-up words for each of
// 64 channels (a channel is one receiver inside the worker) and a set of lanes.
// A lane is a ring with one producer and one consumer; a producer leases it with
// one compare-and-swap, and Push and Next are wait-free. docs/queue-abi.md draws
// the layout, docs/races.md lists the races.
//
//	supervisor:  Format ─ Reset ─ ReleaseDead ─ Check
//	producer:    Lease ─ Push … Push ─ NeedRing → RingFD ─ Release
//	consumer:    OpenConsumer ─ Next … Next ─ Done ─ Arm → sleep ─ Disarm
//
// Any process may die between any two stores. A record becomes visible by a
// single compare-and-swap of the lane's tail, so half a record is never seen and
// nobody waits for the dead. The bytes of the region are not trusted: what does
// not make sense costs packets and is counted (Consumer.Bad), and never leads to
// a panic, an endless loop or an access outside of the region.
//
// The package works on plain byte slices. It maps nothing, starts no goroutine,
// knows neither QUIC nor processes, and allocates nothing after Lease and
// OpenConsumer.
package packetqueue
