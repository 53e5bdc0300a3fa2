// Package udpmsg sends and receives UDP datagrams with their control data and
// without allocation.
//
// It is a thin layer over recvmmsg(2) and sendmsg(2): trains of segments that
// the kernel merged on receive (UDP_GRO), ECN marks, the local address and
// interface of a datagram, and the kernel's count of datagrams that it had to
// drop. Descriptors are plain numbers that the caller owns; nothing here
// registers them with Go's poller, and every call is non-blocking whatever
// the mode of the descriptor, since its open file description is shared with
// other processes.
//
// The package starts no goroutine, keeps no state of its own and knows
// neither QUIC nor queues.
package udpmsg
