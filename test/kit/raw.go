package kit

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"time"
)

// PacketType is what a datagram's first packet is, as far as anyone can tell
// without keys (RFC 8999, RFC 9000 section 17).
type PacketType int

// Packet types.
const (
	PacketNone PacketType = iota // not a QUIC packet
	PacketShort
	PacketInitial
	PacketEarly // 0-RTT
	PacketHandshake
	PacketRetry
	PacketVersionNegotiation
	PacketOther // long header of a version that the kit does not know
)

// Version1 is QUIC version 1, RFC 9000.
const Version1 uint32 = 1

// Datagram is the outside of a datagram's first packet.
type Datagram struct {
	Type    PacketType
	Version uint32
	DCID    []byte // of a short header: all that could be one, 20 bytes at most
	SCID    []byte
}

// ParseDatagram looks at the first packet of a datagram.
func ParseDatagram(b []byte) Datagram {
	if len(b) == 0 {
		return Datagram{}
	}
	if b[0]&0x80 == 0 {
		if b[0]&0x40 == 0 {
			return Datagram{}
		}
		return Datagram{Type: PacketShort, DCID: b[1:min(len(b), 21)]}
	}
	if len(b) < 7 {
		return Datagram{}
	}
	d := Datagram{Version: binary.BigEndian.Uint32(b[1:])}
	rest := b[5:]
	var ok bool
	if d.DCID, rest, ok = cutID(rest); !ok {
		return Datagram{}
	}
	if d.SCID, _, ok = cutID(rest); !ok {
		return Datagram{}
	}
	switch d.Version {
	case 0:
		d.Type = PacketVersionNegotiation
	case Version1:
		d.Type = [...]PacketType{PacketInitial, PacketEarly, PacketHandshake, PacketRetry}[b[0]>>4&3]
	default:
		d.Type = PacketOther
	}
	return d
}

func cutID(b []byte) (id, rest []byte, ok bool) {
	if len(b) == 0 || len(b) < 1+int(b[0]) {
		return nil, nil, false
	}
	return b[1 : 1+b[0]], b[1+b[0]:], true
}

// ShortPacket makes a packet with a short header, the given connection ID and
// random content, size bytes long.
func ShortPacket(dcid []byte, size int) []byte {
	b := random(size)
	b[0] = 0x40 | b[0]&0x3f
	copy(b[1:], dcid)
	return b
}

// LongPacket makes a packet with a long header and random content, size bytes
// long. kind is the two type bits, 0 for Initial in version 1.
func LongPacket(version uint32, kind byte, dcid, scid []byte, size int) []byte {
	b := append(make([]byte, 0, size), 0xc0|kind<<4)
	b = binary.BigEndian.AppendUint32(b, version)
	b = append(append(b, byte(len(dcid))), dcid...)
	b = append(append(b, byte(len(scid))), scid...)
	if kind == 0 {
		b = append(b, 0) // no token
	}
	if rest := size - len(b) - 2; rest > 0 {
		b = binary.BigEndian.AppendUint16(b, 0x4000|uint16(rest))
		b = append(b, random(rest)...)
	}
	return b
}

// RandomID makes a random connection ID.
func RandomID(n int) []byte { return random(n) }

func random(n int) []byte {
	b := make([]byte, n)
	rand.Read(b) // never fails
	return b
}

// RawSocket sends hand-made packets.
type RawSocket struct {
	conn *net.UDPConn
}

// OpenRaw opens a socket for packets to one server.
func OpenRaw(server string) (*RawSocket, error) {
	addr, err := net.ResolveUDPAddr("udp", server)
	if err != nil {
		return nil, err
	}
	c, err := net.DialUDP("udp", nil, addr)
	if err != nil {
		return nil, err
	}
	return &RawSocket{conn: c}, nil
}

// Send sends one datagram.
func (s *RawSocket) Send(b []byte) error {
	_, err := s.conn.Write(b)
	return err
}

// Receive returns the next answer, or nil when none comes within d.
func (s *RawSocket) Receive(d time.Duration) ([]byte, error) {
	s.conn.SetReadDeadline(time.Now().Add(d))
	b := make([]byte, 65535)
	n, err := s.conn.Read(b)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, nil
	}
	return b[:n], err
}

// Local is the socket's own address.
func (s *RawSocket) Local() netip.AddrPort {
	return s.conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

// Close closes the socket.
func (s *RawSocket) Close() error { return s.conn.Close() }
