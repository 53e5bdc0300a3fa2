// Package demo shows on one machine what Holdfast promises: it starts a real
// supervisor with real workers, holds many HTTP/3 connections to it, and
// reloads it several times while some of the clients change their address. It
// counts everything that a client could notice.
//
// Half of the clients send a request each 200 ms, half read one long paced
// transfer. Every third client moves after each reload: either its socket is
// swapped under the connection, as a NAT does it (RFC 9000, section 9.3.3), or
// it probes a new path and switches to it (section 9.2). New connections are
// opened all the time.
//
// Run owns every goroutine, process, socket and file of the demonstration and
// has ended or removed them when it returns.
package demo
