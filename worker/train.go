package worker

import (
	"bytes"

	"github.com/holdfast-quic/holdfast/internal/udpmsg"
)

// train is one received datagram, or several of one size from one sender that
// the kernel merged, with what is known about all of them. data shrinks as
// segments are dealt with.
type train struct {
	source  source
	data    []byte
	segment int // size of each datagram but the last; at least 1
	remote  udpmsg.Addr
	local   udpmsg.Addr // no address: unknown
	ifIndex uint32
	ecn     uint8
	oob     int // length of the control data in reader.oob; -1: not made yet
}

// set makes the train one of data in segments; zero: one datagram.
func (t *train) set(src source, data []byte, segment int) {
	if segment <= 0 || segment > len(data) {
		segment = max(len(data), 1)
	}
	t.source, t.data, t.segment, t.oob = src, data, segment, -1
}

// first returns the datagram at the head of the train.
func (t *train) first() []byte { return t.data[:min(t.segment, len(t.data))] }

// count returns how many datagrams n bytes at the head of the train are.
func (t *train) count(n int) int { return (n + t.segment - 1) / t.segment }

// run returns how many bytes at the head of the train are datagrams like its
// first, whose header is h: short headers with the same connection ID, which
// share its verdict. At most limit datagrams are looked at.
func (t *train) run(h *header, limit int) int {
	end := len(t.first())
	if h.class != classShort {
		return end
	}
	const formBits, short = 0xc0, 0x40
	cid := 1 + len(h.dcid)
	for n := 1; n < limit && end < len(t.data); n++ {
		next := t.data[end:min(end+t.segment, len(t.data))]
		if len(next) < cid || next[0]&formBits != short || !bytes.Equal(next[1:cid], h.dcid) {
			break
		}
		end += len(next)
	}
	return end
}
