package lifeline

import (
	"encoding/json"
	"fmt"
)

// content says whether m has the part that its kind requires, and whether this
// version knows the kind at all. Kinds without content always have it.
func (m *Message) content() (present, known bool) {
	switch m.Kind {
	case KindHello:
		return m.Hello != nil, true
	case KindWelcome:
		return m.Welcome != nil, true
	case KindRefuse:
		return m.Refuse != nil, true
	case KindReaders:
		return m.Readers != nil, true
	case KindReadersSet:
		return m.ReadersSet != nil, true
	case KindSocket, KindDropSocket:
		return m.Socket != nil, true
	case KindPeer, KindPeerSet:
		return m.Peer != nil, true
	case KindDrain:
		return m.Drain != nil, true
	case KindStop:
		return m.Stop != nil, true
	case KindNonceLease:
		return m.NonceLease != nil, true
	case KindConnsQuery:
		return m.ConnsQuery != nil, true
	case KindConnsReply:
		return m.ConnsReply != nil, true
	case KindCloseConn:
		return m.CloseConn != nil, true
	case KindResume:
		return m.Resume != nil, true
	case KindResumed:
		return m.Resumed != nil, true
	case KindFailed:
		return m.Failed != nil, true
	case KindReady, KindNonceRequest, KindDrained, KindReopenLogs, KindUndrain:
		return true, true
	}
	return false, false
}

// Encode returns the wire form of m.
//
// Preconditions: the part that m.Kind names is set.
func Encode(m *Message) ([]byte, error) {
	if present, known := m.content(); !known || !present {
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
	if present, known := m.content(); known && !present {
		return nil, fmt.Errorf("%w: %s without its content", ErrMalformed, m.Kind)
	}
	return &m, nil
}
