// Package connid makes and reads the connection IDs of a QUIC server in the
// format of draft-ietf-quic-load-balancers (QUIC-LB), revision 21.
//
// It has four parts, each usable without the ones after it:
//
//   - [ID], a connection ID as a comparable value.
//   - [Codec], the encoding of the draft: plain, encrypted in one AES block,
//     or encrypted by the four-round Feistel network.
//   - [Router], a use of the codec in which the first octets of the nonce name
//     a process of the host, and [Generator], which makes such connection IDs
//     from ranges of nonces.
//   - [Ledger], the one authority of a host that hands out those ranges and
//     never hands out a nonce twice under one key, whatever crashes.
//
// A connection ID of a Router has 17 octets:
//
//	 0        1            1+S      3+S           6+S              17
//	+--------+------------+--------+-------------+------------------+
//	| CR LEN | server ID  | slot   | incarnation | counter          |
//	+--------+------------+--------+-------------+------------------+
//	          S = 1..3     2        3             11-S, big endian
//	          `----------- one AES-128 block, if there is a key ----'
//
// CR are the three configuration rotation bits and LEN the five bits that hold
// the length of what follows, or random bits. A load balancer that speaks
// QUIC-LB takes everything after the server ID for the nonce.
//
// Codec, Router and Generator are safe for concurrent use, start no goroutine
// and do no input or output. A Ledger is safe for concurrent use, also by
// several processes, and writes to its file in Lease only.
package connid
