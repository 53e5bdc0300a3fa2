package worker

import (
	"bytes"
	"encoding/hex"
	"testing"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	must(t, err)
	return b
}

// The samples of RFC 9001, appendix A.1, and RFC 9369, appendix A.1.
func TestInitialSecrets(t *testing.T) {
	dcid := unhex(t, "8394c8f03e515708")
	for _, tt := range []struct {
		version     uint32
		end         string
		key, iv, hp string
	}{
		{version1, fromClient, "1f369613dd76d5467730efcbe3b1a22d", "fa044b2f42a3fd3b46fb255c", "9f50449e04a0e810283a1e9933adedd2"},
		{version1, fromServer, "cf3a5331653c364c88f0f379b6067e37", "0ac1493ca1905853b0bba03e", "c206b8d9b9f0f37644430b490eeaa314"},
		{version2, fromClient, "8b1a0bc121284290a29e0971b5cd045d", "91f73e2351d8fa91660e909f", "45b95e15235d6f45a6b19cbcb0294ba9"},
		{version2, fromServer, "82db637861d55e1d011f19ea71d5d2a7", "dd13c276499c0249d3310652", "edf6d05c83121201b436e16877593c3a"},
	} {
		s, err := deriveInitial(tt.version, dcid, tt.end)
		must(t, err)
		if !bytes.Equal(s.key, unhex(t, tt.key)) || !bytes.Equal(s.iv, unhex(t, tt.iv)) || !bytes.Equal(s.hp, unhex(t, tt.hp)) {
			t.Errorf("version %#x, %s: %x, %x, %x", tt.version, tt.end, s.key, s.iv, s.hp)
		}
	}
}

// The server's Initial packet of RFC 9001, appendix A.3, opens; no packet does
// with a bit flipped or a byte missing.
func TestOpenInitial(t *testing.T) {
	packet := unhex(t, "cf000000010008f067a5502a4262b5004075c0d95a482cd0991cd25b0aac406a5816b6394100f37a1c69797554780bb3"+
		"8cc5a99f5ede4cf73c3ec2493a1839b3dbcba3f6ea46c5b7684df3548e7ddeb9c3bf9c73cc3f3bded74b562bfb19fb84022f8ef4cdd93795d77d06ed"+
		"bb7aaf2f58891850abbdca3d20398c276456cbc42158407dd074ee")
	payload := unhex(t, "02000000000600405a020000560303eefce7f7b37ba1d1632e96677825ddf73988cfc79825df566dc5430b9a045a12001301"+
		"00002e00330024001d00209d3c940d89690b84d08a60993c144eca684d1081287c834d5311bcf32bb9da1a002b00020304")
	const number = 18
	keys, err := newInitialKeys(version1, unhex(t, "8394c8f03e515708"), fromServer)
	must(t, err)
	before := bytes.Clone(packet)
	if got, ok := keys.open(packet, number); !ok || !bytes.Equal(got, payload) || !bytes.Equal(packet, before) {
		t.Fatalf("opened %v: %x", ok, got)
	}
	for bit := range len(packet) * 8 {
		packet[bit/8] ^= 1 << (bit % 8)
		if _, ok := keys.open(packet, number); ok {
			t.Errorf("opens with bit %d flipped", bit)
		}
		packet[bit/8] ^= 1 << (bit % 8)
	}
	for n := range packet {
		if _, ok := keys.open(packet[:n], min(number, n)); ok {
			t.Errorf("%d bytes open", n)
		}
	}
}

// What is sealed opens, in both versions.
func TestSealInitial(t *testing.T) {
	for _, version := range []uint32{version1, version2} {
		keys, err := newInitialKeys(version, seq(8), fromServer)
		must(t, err)
		header, payload := append([]byte{0xc3, 1, 2, 3, 4, 5}, 0, 0, 1, 2), []byte("four")
		packet := keys.seal(bytes.Clone(header), payload)
		if bytes.HasPrefix(packet, header) || len(packet) != len(header)+len(payload)+initialTagLen {
			t.Errorf("version %#x: %x", version, packet)
		}
		if got, ok := keys.open(packet, len(header)-4); !ok || !bytes.Equal(got, payload) {
			t.Errorf("version %#x: opened %v: %x", version, ok, got)
		}
	}
}

// Whatever a datagram holds, looking closely at it does not fail, and the answer
// is small.
func FuzzRefusal(f *testing.F) {
	dcid := seq(17)
	f.Add(clientInitial(f, version1, dcid, seq(5), dcid, seq(90)))
	f.Add(clientInitial(f, version2, dcid, nil, dcid, nil))
	f.Add(longPacket(version1, 0, dcid, seq(5), minInitial))
	f.Fuzz(func(t *testing.T, b []byte) {
		h := parseHeader(b, testCIDLen)
		if h.class != classInitial {
			return
		}
		token := initialToken(b, &h)
		if len(token) > len(b) {
			t.Error("token")
		}
		answer, ok := refusal(b, &h)
		if ok && len(answer) >= minInitial/10 {
			t.Errorf("%d bytes answer %d", len(answer), len(b))
		}
	})
}
