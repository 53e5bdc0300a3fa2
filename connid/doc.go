// Package connid makes and reads the connection IDs of a QUIC server in the
// format of draft-ietf-quic-load-balancers (QUIC-LB).
package connid
