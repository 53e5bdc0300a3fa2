package lifeline

import (
	"encoding/json"
	"fmt"
)

// content returns the part of m that its kind requires, or false for a kind
// that this version does not know. Kinds without content return nil.
func (m *Message) content() (part any, present, known bool) {
	switch m.Kind {
	case KindHello:
		return m.Hello, m.Hello != nil, true
	case KindWelcome:
		return m.Welcome, m.Welcome != nil, true
	case KindRefuse:
		return m.Refuse, m.Refuse != nil, true
	case KindReaders:
		return m.Readers, m.Readers != nil, true
	case KindReadersSet:
		return m.ReadersSet, m.ReadersSet != nil, true
	case KindSocket, KindDropSocket:
		return m.Socket, m.Socket != nil, true
	case KindPeer, KindPeerSet:
		return m.Peer, m.Peer != nil, true
	case KindDrain:
		return m.Drain, m.Drain != nil, true
	case KindStop:
		return m.Stop, m.Stop != nil, true
	case KindNonceLease:
		return m.NonceLease, m.NonceLease != nil, true
	case KindConnsQuery:
		return m.ConnsQuery, m.ConnsQuery != nil, true
	case KindConnsReply:
		return m.ConnsReply, m.ConnsReply != nil, true
	case KindCloseConn:
		return m.CloseConn, m.CloseConn != nil, true
	case KindFailed:
		return m.Failed, m.Failed != nil, true
	case KindReady, KindNonceRequest, KindDrained, KindReopenLogs:
		return nil, true, true
	}
	return nil, false, false
}

// Encode returns the wire form of m.
//
// Preconditions: the part that m.Kind names is set.
func Encode(m *Message) ([]byte, error) {
	if _, present, known := m.content(); !known || !present {
		panic(fmt.Sprintf("lifeline: message %q without its content", m.Kind))
	}
	wire, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", m.Kind, err)
	}
	return wire, nil
}

// Decode parses one message and checks that the content which its kind
// requires is there. A kind that this version does not know is no error: the
// message is returned with that kind, so that a newer peer may say more than
// an older one understands.
func Decode(wire []byte) (*Message, error) {
	var m Message
	if err := json.Unmarshal(wire, &m); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if m.Kind == "" {
		return nil, fmt.Errorf("%w: no kind", ErrMalformed)
	}
	if _, present, known := m.content(); known && !present {
		return nil, fmt.Errorf("%w: %s without its content", ErrMalformed, m.Kind)
	}
	return &m, nil
}
