package worker

import (
	"encoding/binary"

	"github.com/quic-go/quic-go"

	"github.com/holdfast-quic/holdfast/internal/udpmsg"
)

// A client that answers a Retry is not going to take another one (RFC 9000,
// section 17.2.5.2). If its token is not one of ours, it has to be told that the
// attempt has failed, or it waits until its handshake times out (section 8.1.2:
// INVALID_TOKEN, at once). quic-go does so for tokens that it can read. One that
// it cannot read it takes for an address token of somebody else, which counts as
// none, and sends another Retry. Here more is known: the connection ID is one
// that this service has issued, and only a Retry gives out an ID for a first
// packet.

// retryAnswer is how an Initial packet stands to a Retry of this service.
type retryAnswer uint8

const (
	answersNone retryAnswer = iota // no Retry that can be told
	answersWell                    // with the token of the Retry
	answersIll                     // with another one, if it is meant as an answer at all
)

// answersRetry looks at an Initial packet whose ID is not in the table.
// answersIll may also be an Initial of a live connection, sent to an ID that its
// client got after the handshake; refusal tells these apart.
func (n *node) answersRetry(token, cid []byte) retryAnswer {
	if len(token) == 0 {
		return answersNone
	}
	if _, ours := n.router.Route(cid); !ours {
		return answersNone
	}
	switch n.retries.kind(token, cid) {
	case tokenOfRetry:
		return answersWell
	case tokenBroken, tokenMismatch:
		return answersIll
	}
	return answersNone
}

// refuse answers the first datagram of a train, whose header is h and which
// answersIll, with INVALID_TOKEN, and reports whether it did. It answers at once
// or not at all: waiting for room in a socket would hold up everybody's packets,
// and the client asks again. What comes above the rate is left to quic-go like
// any other Initial packet.
func (r *reader) refuse(h *header, t *train) bool {
	if !r.conn.refusals.allow(r.now) {
		return false
	}
	answer, ok := refusal(t.first(), h)
	if !ok {
		return false
	}
	var oob []byte
	if r.elsewhere(t) {
		oob = udpmsg.AppendPacketInfo(nil, t.local, t.ifIndex)
	}
	r.conn.sender.sendOnce(answer, oob, t.remote)
	return true
}

// refusal returns the answer to an Initial packet with a bad token. It reports
// false for a packet that its own destination ID does not open: it is damaged,
// or belongs to a connection that began with another ID. Who sends one that
// opens is at the beginning of a connection, so there is none that the answer
// could end.
func refusal(b []byte, h *header) ([]byte, bool) {
	_, rest, ok := cutToken(b, h)
	if !ok {
		return nil, false
	}
	length, rest, ok := cutVarint(rest)
	if !ok || length > uint64(len(rest)) {
		return nil, false
	}
	number := len(b) - len(rest)
	client, err := newInitialKeys(h.version, h.dcid, fromClient)
	if err != nil {
		return nil, false
	}
	if _, ok = client.open(b[:number+int(length)], number); !ok {
		return nil, false
	}
	answer, err := invalidToken(h)
	return answer, err == nil
}

// invalidToken makes the Initial packet that refuses a client's Initial with
// header h: CONNECTION_CLOSE with INVALID_TOKEN (RFC 9000, section 17.2.2 and
// 19.19). It is far smaller than what it answers, and no state is kept.
func invalidToken(h *header) ([]byte, error) {
	const (
		longHeader      = 0xc0
		numberLen       = 4 // so that the short payload has a sample
		connectionClose = 0x1c
		noFrameType     = 0
		noReason        = 0
		longest         = 128 // with two IDs of maxCID
	)
	server, err := newInitialKeys(h.version, h.dcid, fromServer)
	if err != nil {
		return nil, err
	}
	payload := []byte{connectionClose, byte(quic.InvalidToken), noFrameType, noReason}
	kind := byte(0)
	if h.version == version2 {
		kind = 1 // RFC 9369, section 3.2
	}
	b := append(make([]byte, 0, longest), longHeader|kind<<4|(numberLen-1))
	b = binary.BigEndian.AppendUint32(b, h.version)
	b = append(append(b, byte(len(h.scid))), h.scid...)
	b = append(append(b, byte(len(h.dcid))), h.dcid...)
	b = append(b, 0) // no token
	b = append(b, byte(numberLen+len(payload)+initialTagLen))
	b = append(b, make([]byte, numberLen)...) // packet number 0
	return server.seal(b, payload), nil
}
