package worker

import (
	"bytes"
	"encoding/binary"
	"testing"
)

const testCIDLen = 17

// longPacket builds a long header packet of size bytes.
func longPacket(version uint32, kind byte, dcid, scid []byte, size int) []byte {
	b := []byte{0xc0 | kind<<4}
	b = binary.BigEndian.AppendUint32(b, version)
	b = append(b, byte(len(dcid)))
	b = append(b, dcid...)
	b = append(b, byte(len(scid)))
	b = append(b, scid...)
	for len(b) < size {
		b = append(b, 0xa5)
	}
	return b
}

func shortPacket(dcid []byte, size int) []byte {
	b := append([]byte{0x40}, dcid...)
	for len(b) < size {
		b = append(b, 0x5a)
	}
	return b
}

func seq(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i + 1)
	}
	return b
}

func TestParseHeader(t *testing.T) {
	const grease = 0x1a2a3a4a
	for _, tt := range []struct {
		name   string
		packet []byte
		class  class
		dcid   []byte
	}{
		{"empty", nil, classMalformed, nil},
		{"one byte", []byte{0x40}, classMalformed, nil},
		{"short", shortPacket(seq(17), 40), classShort, seq(17)},
		{"short, no payload", shortPacket(seq(17), 18), classShort, seq(17)},
		{"short, cut off in the ID", shortPacket(seq(16), 17), classMalformed, nil},
		{"short without the fixed bit", append([]byte{0x00}, seq(30)...), classMalformed, nil},
		{"too long for quic-go", shortPacket(seq(17), maxDatagram+1), classMalformed, nil},
		{"as long as can be", shortPacket(seq(17), maxDatagram), classShort, seq(17)},
		{"v1 initial", longPacket(version1, 0, seq(8), seq(5), 1200), classInitial, seq(8)},
		{"v1 initial, runt", longPacket(version1, 0, seq(8), seq(5), 1199), classRunt, seq(8)},
		{"v1 initial, ID too short", longPacket(version1, 0, seq(7), seq(5), 1200), classMalformed, nil},
		{"v1 initial, ID too long", longPacket(version1, 0, seq(21), seq(5), 1200), classMalformed, nil},
		{"v1 initial, source ID too long", longPacket(version1, 0, seq(8), seq(21), 1200), classMalformed, nil},
		{"v1 0-rtt", longPacket(version1, 1, seq(8), seq(5), 100), classZeroRTT, seq(8)},
		{"v1 handshake", longPacket(version1, 2, seq(17), seq(5), 100), classHandshake, seq(17)},
		{"v1 handshake, empty ID", longPacket(version1, 2, nil, seq(5), 100), classHandshake, nil},
		{"v1 retry", longPacket(version1, 3, seq(17), seq(5), 100), classHandshake, seq(17)},
		{"v2 initial", longPacket(version2, 1, seq(20), nil, 1200), classInitial, seq(20)},
		{"v2 0-rtt", longPacket(version2, 2, seq(8), nil, 100), classZeroRTT, seq(8)},
		{"v2 handshake", longPacket(version2, 3, seq(17), nil, 100), classHandshake, seq(17)},
		{"v2 retry", longPacket(version2, 0, seq(17), nil, 100), classHandshake, seq(17)},
		{"version negotiation", longPacket(0, 0, seq(17), seq(8), 60), classHandshake, seq(17)},
		{"unknown version", longPacket(grease, 0, seq(8), seq(5), 1200), classUnknownVersion, seq(8)},
		{"unknown version, long IDs", longPacket(grease, 0, seq(255), seq(255), 1200), classUnknownVersion, seq(255)},
		{"long, cut off in the version", []byte{0xc0, 0, 0}, classMalformed, nil},
		{"long, cut off in the ID", longPacket(version1, 0, seq(8), seq(5), 0)[:10], classMalformed, nil},
		{"long, cut off before the source ID", longPacket(version1, 0, seq(8), nil, 0)[:14], classMalformed, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := parseHeader(tt.packet, testCIDLen)
			if h.class != tt.class || !bytes.Equal(h.dcid, tt.dcid) && h.class != classMalformed {
				t.Errorf("got %v %x, want %v %x", h.class, h.dcid, tt.class, tt.dcid)
			}
		})
	}
}

// RFC 9001, appendix A.2: the client's Initial as it goes over the wire.
func TestParseHeaderOfSampleInitial(t *testing.T) {
	packet := make([]byte, 1200)
	copy(packet, []byte{0xc0, 0x00, 0x00, 0x00, 0x01, 0x08, 0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08, 0x00, 0x00, 0x44, 0x9e})
	h := parseHeader(packet, testCIDLen)
	if want := []byte{0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08}; h.class != classInitial || !bytes.Equal(h.dcid, want) {
		t.Errorf("got %v %x", h.class, h.dcid)
	}
}

func TestIssuedSCID(t *testing.T) {
	own := seq(testCIDLen)
	for _, tt := range []struct {
		name   string
		packet []byte
		want   bool
	}{
		{"v1 initial", longPacket(version1, 0, seq(8), own, 100), true},
		{"v1 handshake", longPacket(version1, 2, seq(8), own, 100), true},
		{"v1 retry", longPacket(version1, 3, seq(8), own, 100), false},
		{"v2 initial", longPacket(version2, 1, seq(8), own, 100), true},
		{"v2 retry", longPacket(version2, 0, seq(8), own, 100), false},
		{"version negotiation", longPacket(0, 0, seq(8), own, 100), false},
		{"other length", longPacket(version1, 0, seq(8), seq(8), 100), false},
		{"short", shortPacket(own, 100), false},
		{"empty", nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := issuedSCID(tt.packet, testCIDLen)
			if ok != tt.want || ok && !bytes.Equal(got, own) {
				t.Errorf("got %x %v, want %v", got, ok, tt.want)
			}
		})
	}
}

func FuzzParseHeader(f *testing.F) {
	f.Add(shortPacket(seq(17), 40))
	f.Add(longPacket(version1, 0, seq(8), seq(5), 1200))
	f.Add(longPacket(version2, 3, seq(17), nil, 100))
	f.Add(longPacket(0xfefefefe, 0, seq(255), seq(255), 1200))
	f.Fuzz(func(t *testing.T, b []byte) {
		h := parseHeader(b, testCIDLen)
		switch h.class {
		case classMalformed:
			return
		case classShort:
			if len(h.dcid) != testCIDLen || !bytes.Equal(b[1:1+testCIDLen], h.dcid) {
				t.Errorf("short header ID %x of %x", h.dcid, b)
			}
		case classInitial, classZeroRTT, classRunt:
			if len(h.dcid) < minInitialCID || len(h.dcid) > maxCID {
				t.Errorf("%v with an ID of %d bytes", h.class, len(h.dcid))
			}
			if (h.class == classInitial) != (len(b) >= minInitial) && h.class != classZeroRTT {
				t.Errorf("%v of %d bytes", h.class, len(b))
			}
		case classHandshake:
			if len(h.dcid) > maxCID {
				t.Errorf("%v with an ID of %d bytes", h.class, len(h.dcid))
			}
		}
		if h.class != classShort && !bytes.Equal(b[6:6+len(h.dcid)], h.dcid) {
			t.Errorf("long header ID %x of %x", h.dcid, b)
		}
		issuedSCID(b, testCIDLen)
	})
}
