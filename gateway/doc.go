// Package gateway is the built-in worker: HTTP/3, HTTP/2 and HTTP/1.1 on one
// port, answered by one set of routes.
//
// Serve runs inside worker.Main. It takes the sockets and the QUIC transports
// that package worker hands it, and leaves everything about packets and
// steering to that package. What it adds are the protocols, the routes, the
// certificates, the access log, and the goodbye.
//
// # The goodbye
//
// Every connection is one session in a registry (drain.go), whatever its
// protocol. Holding back (drain mode hold) is doing nothing at all: no
// listener is closed and no connection learns that its generation is no longer
// current. A goaway visits the sessions one by one, spread over a window, and
// tells each in the words of its protocol: GOAWAY in HTTP/3 (RFC 9114, section
// 5.2) and HTTP/2 (RFC 9113, section 6.8), "Connection: close" on the next
// response in HTTP/1.1 (RFC 9112, section 9.6). A session that was told is
// closed once it has been quiet; one that has not been told yet is not told at
// all when the drain is canceled.
//
// # Goroutines
//
// Serve owns one goroutine per listener and transport that accepts, and one
// that drains. HTTP/3 has one goroutine per connection and one per request,
// net/http has its own. All of them have ended when Serve returns, apart from
// handlers that do not react to the end of their request's context.
//
// The package never reads a configuration file and never opens a listening
// socket.
package gateway
