// Package lifeline is the private socket between a supervisor and one worker.
//
// It carries commands and descriptors, never packets: everything that the
// packet path has to read lies in the shared segment. The socket is a
// SOCK_SEQPACKET pair, so a message arrives whole or not at all, and its
// closing is how either end learns of the other's death.
//
// The package starts no goroutine. A Conn may be used by one reader and any
// number of writers at once.
package lifeline
