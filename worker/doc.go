// Package worker turns a Go program into a worker of Holdfast: a process that
// serves QUIC and TCP connections and can be replaced by its successor without
// losing one of them.
//
// A program calls Main and gets a *Worker, which has the listeners that the
// supervisor owns. QUIC(name) is a quic-go Transport, TCP(name) a
// net.Listener; both accept connections while the worker's generation is
// current and keep serving the ones they have for as long as it drains.
//
// # The packet path
//
// Every UDP socket is read by one worker at a time, whichever connections it
// holds. So each datagram is steered before quic-go sees it: header.go finds
// the connection ID, steer.go decides, and the datagram is delivered here or
// pushed into the packet queue of the worker that owns the connection. A
// conn, the net.PacketConn of one listener, does this inside ReadBatch, on the
// goroutine that quic-go reads with; it merges the listener's sockets and the
// worker's own queue into one wait.
//
// # Goroutines
//
// One goroutine per worker reads the lifeline and one ticks once a second.
// Each listener in use adds quic-go's reading goroutine and, for TCP, the one
// that calls Accept. Everything that a reading goroutine uses per packet
// belongs to it alone; changes reach it as an immutable plan in an atomic
// pointer and a write to its wake descriptor.
//
// # What it never does
//
// The packet path takes no lock, allocates nothing, logs nothing and waits
// for nobody. A full queue, a dead owner or a missing doorbell costs that
// packet and a counter.
package worker
