package connid

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// Layout of a Router's nonce, in octets.
const (
	slotLen           = 2
	incarnationLen    = 3
	counterLen        = 8
	maxRouterServerID = blockLen - slotLen - incarnationLen - counterLen
	incarnationMask   = 1<<(8*incarnationLen) - 1
)

// Route names a process of this host inside a connection ID.
type Route struct {
	// Slot is the worker slot.
	Slot uint16
	// Incarnation tells apart the processes that had the slot one after the
	// other. Only the low 24 bits travel in a connection ID.
	Incarnation uint32
}

// Router makes and reads connection IDs that name a process of this host. It
// is immutable and safe for concurrent use.
type Router struct {
	codec *Codec
	pad   int // zero octets before the counter, when the server ID is short
}

// NewRouter returns the router of config. The server ID has 1 to 3 octets; the
// nonce takes what is left of 16 octets, so NonceLen may be left zero. It
// returns an error that wraps [ErrConfig] otherwise.
func NewRouter(config Config) (*Router, error) {
	if len(config.ServerID) > maxRouterServerID {
		return nil, fmt.Errorf("%w: server ID has %d octets, not 1 to %d", ErrConfig, len(config.ServerID), maxRouterServerID)
	}
	nonceLen := blockLen - len(config.ServerID)
	if config.NonceLen != 0 && config.NonceLen != nonceLen {
		return nil, fmt.Errorf("%w: nonce has %d octets, not the %d that the server ID leaves", ErrConfig, config.NonceLen, nonceLen)
	}
	config.NonceLen = nonceLen
	codec, err := NewCodec(config)
	if err != nil {
		return nil, err
	}
	return &Router{codec: codec, pad: maxRouterServerID - len(config.ServerID)}, nil
}

// Len returns the octets of a connection ID: 17.
func (r *Router) Len() int { return r.codec.Len() }

// Format implements [fmt.Formatter]: it describes the configuration, and no
// verb prints the key or what was made from it.
func (r *Router) Format(w fmt.State, verb rune) { r.codec.Format(w, verb) }

// ID returns the connection ID of route and counter, or [ErrRoute] when the
// route has incarnation 0, which no process has.
//
// A counter must be used once only under one key and server ID, by whatever
// route: take counters from a [Ledger].
func (r *Router) ID(route Route, counter uint64) (ID, error) {
	if route.Incarnation == 0 {
		return ID{}, ErrRoute
	}
	var buf [blockLen]byte
	nonce := binary.BigEndian.AppendUint16(buf[:0], route.Slot)
	nonce = append(nonce, byte(route.Incarnation>>16), byte(route.Incarnation>>8), byte(route.Incarnation))
	nonce = buf[:len(nonce)+r.pad]
	nonce = binary.BigEndian.AppendUint64(nonce, counter)
	return r.codec.Encode(nonce)
}

// Route returns the process that cid names. It reports false for connection
// IDs of another length, configuration or server ID. A true result is a claim
// by whoever sent cid: random octets pass with a chance of 1 in 2^24, and a
// client may send any. Does not allocate.
func (r *Router) Route(cid []byte) (Route, bool) {
	serverID, nonce, ok := r.codec.Decode(cid)
	if !ok || !bytes.Equal(serverID, r.codec.config.ServerID) {
		return Route{}, false
	}
	const counterAt = slotLen + incarnationLen
	for _, c := range nonce[counterAt : counterAt+r.pad] {
		if c != 0 {
			return Route{}, false
		}
	}
	return Route{
		Slot:        binary.BigEndian.Uint16(nonce),
		Incarnation: uint32(nonce[2])<<16 | uint32(nonce[3])<<8 | uint32(nonce[4]),
	}, true
}
