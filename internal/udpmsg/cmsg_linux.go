package udpmsg

import (
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ECNMask selects the ECN field of a TOS or traffic class byte (RFC 3168).
const ECNMask = 0x3

const (
	cmsgAlign  = int(unsafe.Sizeof(uintptr(0)))
	cmsgHeader = (unix.SizeofCmsghdr + cmsgAlign - 1) &^ (cmsgAlign - 1)

	sizePktinfo4 = 12 // struct in_pktinfo: index, spec_dst, addr
	sizePktinfo6 = 20 // struct in6_pktinfo: addr, index
)

// control is one control message inside a buffer. Its data aliases the buffer.
type control struct {
	level, kind int32
	data        []byte
}

// nextControl splits the first control message off b. It reports false at the
// end and for a header whose length does not fit.
func nextControl(b []byte) (c control, rest []byte, ok bool) {
	if len(b) < unix.SizeofCmsghdr {
		return control{}, nil, false
	}
	var h unix.Cmsghdr
	// A copy, since a caller's buffer need not be aligned.
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&h)), unix.SizeofCmsghdr), b)
	n := uint64(h.Len) //nolint:unconvert // it is uint32 on 32-bit systems
	if n < uint64(cmsgHeader) || n > uint64(len(b)) {
		return control{}, nil, false
	}
	c = control{level: h.Level, kind: h.Type, data: b[cmsgHeader:n]}
	next := (int(n) + cmsgAlign - 1) &^ (cmsgAlign - 1)
	return c, b[min(next, len(b)):], true
}

// appendControl appends a zeroed control message with room for n bytes of data
// and returns the buffer and that room. Precondition: cap(b) suffices if the
// caller must not allocate.
func appendControl(b []byte, level, kind int32, n int) (all, data []byte) {
	start := len(b)
	space := cmsgHeader + (n+cmsgAlign-1)&^(cmsgAlign-1)
	if cap(b)-start >= space {
		b = b[:start+space]
		clear(b[start:])
	} else {
		b = append(b, make([]byte, space)...)
	}
	var h unix.Cmsghdr
	h.Level, h.Type = level, kind
	h.SetLen(cmsgHeader + n)
	copy(b[start:], unsafe.Slice((*byte)(unsafe.Pointer(&h)), unix.SizeofCmsghdr))
	return b, b[start+cmsgHeader : start+cmsgHeader+n]
}

// AppendECN appends the control message in which the kernel reports, and
// takes, the ECN bits of a datagram of the family.
func AppendECN(oob []byte, family, ecn uint8) []byte {
	if family == IPv4 {
		oob, data := appendControl(oob, unix.IPPROTO_IP, unix.IP_TOS, 1)
		data[0] = ecn & ECNMask
		return oob
	}
	oob, data := appendControl(oob, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, 4)
	binary.NativeEndian.PutUint32(data, uint32(ecn&ECNMask))
	return oob
}

// AppendPacketInfo appends the control message that carries the local address
// of a datagram and the index of its interface, as the kernel reports it on
// receive. For sending, the same message selects the source address.
func AppendPacketInfo(oob []byte, local Addr, ifIndex uint32) []byte {
	if local.Family == IPv4 {
		oob, data := appendControl(oob, unix.IPPROTO_IP, unix.IP_PKTINFO, sizePktinfo4)
		binary.NativeEndian.PutUint32(data, ifIndex)
		copy(data[4:8], local.Addr[:4])
		copy(data[8:12], local.Addr[:4])
		return oob
	}
	oob, data := appendControl(oob, unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, sizePktinfo6)
	copy(data[:16], local.Addr[:])
	binary.NativeEndian.PutUint32(data[16:], ifIndex)
	return oob
}

// SegmentSize returns the UDP_SEGMENT size that a control buffer asks for, or
// zero.
func SegmentSize(oob []byte) uint16 {
	for {
		c, rest, ok := nextControl(oob)
		if !ok {
			return 0
		}
		if c.level == unix.IPPROTO_UDP && c.kind == unix.UDP_SEGMENT && len(c.data) >= 2 {
			return binary.NativeEndian.Uint16(c.data)
		}
		oob = rest
	}
}

// WithoutECN returns the control messages of oob except ECN marks, and whether
// there was one. The result is a part of oob if the mark was the last message,
// which is where quic-go puts it; else it is made in buf.
func WithoutECN(buf, oob []byte) (out []byte, had bool) {
	out = buf[:0]
	all := oob
	for {
		c, rest, ok := nextControl(oob)
		if !ok {
			return out, had
		}
		mark := (c.level == unix.IPPROTO_IP && c.kind == unix.IP_TOS) ||
			(c.level == unix.IPPROTO_IPV6 && c.kind == unix.IPV6_TCLASS)
		if mark && len(rest) == 0 && !had {
			return all[:len(all)-len(oob)], true
		}
		if mark {
			had = true
		} else {
			out = append(out, oob[:len(oob)-len(rest)]...)
		}
		oob = rest
	}
}

// parse fills the parts of m that come from control messages.
func (m *Message) parse(oob []byte) {
	for {
		c, rest, ok := nextControl(oob)
		if !ok {
			return
		}
		switch c.level {
		case unix.IPPROTO_IP:
			m.parseIPv4(c)
		case unix.IPPROTO_IPV6:
			m.parseIPv6(c)
		case unix.IPPROTO_UDP:
			if c.kind == unix.UDP_GRO && len(c.data) >= 4 {
				m.Segment = int(int32(binary.NativeEndian.Uint32(c.data)))
			}
		case unix.SOL_SOCKET:
			if c.kind == unix.SO_RXQ_OVFL && len(c.data) >= 4 {
				m.Dropped, m.HasDropped = binary.NativeEndian.Uint32(c.data), true
			}
		}
		oob = rest
	}
}

func (m *Message) parseIPv4(c control) {
	switch {
	case c.kind == unix.IP_TOS && len(c.data) >= 1:
		m.ECN = c.data[0] & ECNMask
	case c.kind == unix.IP_PKTINFO && len(c.data) >= sizePktinfo4:
		m.Local = Addr{Family: IPv4}
		copy(m.Local.Addr[:4], c.data[8:12])
		m.IfIndex = binary.NativeEndian.Uint32(c.data)
	}
}

func (m *Message) parseIPv6(c control) {
	switch {
	case c.kind == unix.IPV6_TCLASS && len(c.data) >= 4:
		m.ECN = uint8(binary.NativeEndian.Uint32(c.data)) & ECNMask
	case c.kind == unix.IPV6_PKTINFO && len(c.data) >= sizePktinfo6:
		if m.Local.Family == IPv4 {
			return // IP_PKTINFO has told it in the family of the datagram
		}
		m.Local = Addr{Family: IPv6, Addr: [16]byte(c.data[:16])}
		m.Local.unmap()
		m.IfIndex = binary.NativeEndian.Uint32(c.data[16:])
	}
}
