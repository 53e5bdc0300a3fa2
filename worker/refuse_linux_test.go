package worker

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/asn1"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/holdfast-quic/holdfast/internal/udpmsg"
	"github.com/holdfast-quic/holdfast/packetqueue"
	"github.com/holdfast-quic/holdfast/shm"
)

// makeToken makes an address token as quic-go does.
func makeToken(t testing.TB, key [32]byte, retry bool, retrySCID []byte) []byte {
	t.Helper()
	data, err := asn1.Marshal(struct {
		IsRetryToken             bool
		RemoteAddr               []byte
		Timestamp                int64
		RTT                      int64
		OriginalDestConnectionID []byte
		RetrySrcConnectionID     []byte
	}{retry, []byte("127.0.0.1"), 1, 1, seq(8), retrySCID})
	must(t, err)
	salt := make([]byte, 32)
	_, _ = rand.Read(salt)
	aead, err := (&retryTokens{key}).aead(salt)
	must(t, err)
	return aead.Seal(salt, nil, data, nil)
}

// clientInitial makes a protected Initial packet of a client in a datagram of
// the least size. keyID is the connection ID that its keys are derived from.
func clientInitial(t testing.TB, version uint32, dcid, scid, keyID, token []byte) []byte {
	t.Helper()
	first := byte(0xc3)
	if version == version2 {
		first |= 1 << 4
	}
	b := binary.BigEndian.AppendUint32([]byte{first}, version)
	b = append(append(b, byte(len(dcid))), dcid...)
	b = append(append(b, byte(len(scid))), scid...)
	b = append(binary.BigEndian.AppendUint16(b, 0x4000|uint16(len(token))), token...)
	const number = 4
	rest := minInitial - len(b) - 2
	b = binary.BigEndian.AppendUint16(b, 0x4000|uint16(rest))
	b = binary.BigEndian.AppendUint32(b, 1)
	payload := make([]byte, rest-number-initialTagLen)
	payload[0] = 1 // PING; the rest is PADDING
	keys, err := newInitialKeys(version, keyID, fromClient)
	must(t, err)
	return keys.seal(b, payload)
}

// mustBeInvalidToken verifies the answer to an Initial packet.
func mustBeInvalidToken(t testing.TB, answer []byte, version uint32, dcid, scid []byte) {
	t.Helper()
	h, ok := parseLong(answer)
	if !ok || h.version != version || !bytes.Equal(h.dcid, scid) || !bytes.Equal(h.scid, dcid) || len(answer) > 100 {
		t.Fatalf("answer %x", answer)
	}
	keys, err := newInitialKeys(version, dcid, fromServer)
	must(t, err)
	payload, ok := keys.open(answer, longHeaderLen(&h)+2)
	if !ok || !bytes.Equal(payload, []byte{0x1c, 0x0b, 0, 0}) {
		t.Errorf("opens %v: %x", ok, payload)
	}
}

func flipped(b []byte, at int) []byte {
	b = slices.Clone(b)
	b[at] ^= 1
	return b
}

// The kinds of tokens, one of them made by quic-go itself: should it change how
// they are made, this fails. C109
func TestRetryTokens(t *testing.T) {
	s := newService(t)
	sock := s.listen("udp4", "127.0.0.1:0")
	a := s.start(0, 1, sock)
	a.tr.VerifySourceAddress = func(net.Addr) bool { return true }
	a.echo()
	s.current(1)
	a.read(0)
	c, err := net.Dial("udp4", address(t, sock, "127.0.0.1"))
	must(t, err)
	defer c.Close()
	_, err = c.Write(clientInitial(t, version1, seq(8), seq(5), seq(8), nil))
	must(t, err)
	must(t, c.SetReadDeadline(time.Now().Add(5*time.Second)))
	buf := make([]byte, 2048)
	n, err := c.Read(buf)
	must(t, err)
	h, ok := parseLong(buf[:n])
	if !ok || n < longHeaderLen(&h)+16 {
		t.Fatalf("no Retry: %x", buf[:n])
	}
	cid, token := h.scid, buf[longHeaderLen(&h):n-16]

	r := retryTokens{testTokenKey}
	for name, tt := range map[string]struct {
		token, cid []byte
		want       tokenKind
	}{
		"by quic-go":           {token, cid, tokenOfRetry},
		"ours":                 {makeToken(t, testTokenKey, true, cid), cid, tokenOfRetry},
		"of another Retry":     {token, seq(17), tokenMismatch},
		"address token":        {makeToken(t, testTokenKey, false, nil), cid, tokenOther},
		"bit of the salt":      {flipped(token, 3), cid, tokenBroken},
		"bit of the content":   {flipped(token, len(token)-20), cid, tokenBroken},
		"cut":                  {token[:len(token)-1], cid, tokenBroken},
		"cut to the salt":      {token[:32], cid, tokenBroken},
		"cut to nearly a salt": {token[:33], cid, tokenBroken},
		"another key":          {makeToken(t, [32]byte{1}, true, cid), cid, tokenBroken},
	} {
		if got := r.kind(tt.token, tt.cid); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
}

// An Initial packet that answers a Retry of ours with a bad token is refused by
// the worker that reads it, whether the one that sent the Retry lives or not;
// what may belong to a connection, or is damaged itself, is not. C109
func TestBadRetryTokenIsRefused(t *testing.T) {
	s := newService(t)
	sock := s.listen("udp4", "127.0.0.1:0")
	a, b, gone := s.start(0, 1, sock), s.start(1, 2, sock), s.start(2, 1, sock)
	s.current(2)
	in := b.sink()
	in.read(0)
	idA, idB, idGone := a.newID(), b.newID(), gone.newID()
	gone.kill()
	scid := seq(5)
	c, err := net.Dial("udp4", address(t, sock, "127.0.0.1"))
	must(t, err)
	defer c.Close()

	bad := bytes.Repeat([]byte("damaged "), 12)
	var refused uint64
	for _, version := range []uint32{version1, version2} {
		for name, dcid := range map[string][]byte{"draining": idA, "own": idB, "dead": idGone} {
			for kind, token := range map[string][]byte{"broken": bad, "of another Retry": makeToken(t, testTokenKey, true, seq(17)), "short": {1}} {
				t.Logf("%#x, Retry by %s worker, token %s", version, name, kind)
				_, err := c.Write(clientInitial(t, version, dcid, scid, dcid, token))
				must(t, err)
				refused++
				in.pump("refused", func() bool { return b.count(shm.DropInvalidToken) == refused })
				must(t, c.SetReadDeadline(time.Now().Add(5*time.Second)))
				buf := make([]byte, 2048)
				n, err := c.Read(buf)
				must(t, err)
				mustBeInvalidToken(t, buf[:n], version, dcid, scid)
			}
		}
	}

	// These are for quic-go: of B, as A has none to serve them here.
	initial := func(dcid, keyID, token []byte) []byte { return clientInitial(t, version1, dcid, scid, keyID, token) }
	for name, packet := range map[string][]byte{
		"no token":                    initial(idB, idB, nil),
		"right token":                 initial(idB, idB, makeToken(t, testTokenKey, true, idB)),
		"address token":               initial(idB, idB, makeToken(t, testTokenKey, false, nil)),
		"late packet of a connection": initial(idB, seq(8), makeToken(t, testTokenKey, true, seq(17))),
		"damaged packet":              flipped(initial(idB, idB, bad), 1000),
		"damaged in the token":        flipped(initial(idB, idB, makeToken(t, testTokenKey, true, idB)), 60),
		"not an ID of ours":           initial(seq(17), seq(17), bad),
	} {
		_, err := c.Write(packet)
		must(t, err)
		if got := in.take(1); !bytes.Equal(got[0].data, packet) {
			t.Errorf("%s: %d bytes", name, len(got[0].data))
		}
		s.segment.Table().RemoveAll(b.node.self)
	}
	if n := b.count(shm.DropInvalidToken); n != refused {
		t.Errorf("%d refused, want %d", n, refused)
	}
	s.checkSums()
}

// One that another worker has passed on, as an older version would, is refused
// too, and counted as what came out of a queue in vain.
func TestBadRetryTokenFromTheQueue(t *testing.T) {
	s := newService(t)
	sock := s.listen("udp4", "127.0.0.1:0")
	a := s.start(0, 1, sock)
	s.current(1)
	client, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(t, err)
	defer client.Close()
	remote, _ := udpmsg.AddrFrom(client.LocalAddr().(*net.UDPAddr))
	p, err := packetqueue.Lease(s.segment.Queue(0), packetqueue.Token(3, 99), testListener.ID)
	must(t, err)
	id := a.newID()
	s.segment.SupervisorCounters().Add(shm.ProbePushed, 1)
	must(t, p.Push(&packetqueue.Record{
		Target: uint32(a.node.self.Incarnation), Remote: packetqueue.Endpoint(remote),
		Payload: clientInitial(t, version1, id, seq(5), id, seq(90)),
	}))
	a.sink().pump("refused", func() bool { return a.count(shm.DropLoop) == 1 })
	must(t, client.SetReadDeadline(time.Now().Add(5*time.Second)))
	buf := make([]byte, 2048)
	n, err := client.Read(buf)
	must(t, err)
	mustBeInvalidToken(t, buf[:n], version1, id, seq(5))
	p.Release()
	s.checkSums()
}

// A server on all addresses refuses from the one that was asked.
func TestRefusalComesFromTheAddressAsked(t *testing.T) {
	s := newService(t)
	sock := s.listen("udp", "[::]:0") // both families
	a := s.start(0, 1, sock)
	s.current(1)
	in := a.sink()
	in.read(0)
	id := a.newID()
	for i, host := range []string{"127.0.0.2", "::1"} {
		c, err := net.Dial("udp", address(t, sock, host)) // hears nobody else
		must(t, err)
		defer c.Close()
		_, err = c.Write(clientInitial(t, version1, id, seq(5), id, seq(90)))
		must(t, err)
		in.pump("refused", func() bool { return a.count(shm.DropInvalidToken) == uint64(i+1) })
		must(t, c.SetReadDeadline(time.Now().Add(5*time.Second)))
		buf := make([]byte, 2048)
		n, err := c.Read(buf)
		must(t, err)
		mustBeInvalidToken(t, buf[:n], version1, id, seq(5))
	}
}

// A client of quic-go takes the answer for what it is, at once, in both
// versions. C109
func TestClientUnderstandsTheRefusal(t *testing.T) {
	for _, version := range []quic.Version{quic.Version1, quic.Version2} {
		server, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		must(t, err)
		defer server.Close()
		refused := make(chan bool, 1)
		go func() {
			buf := make([]byte, 2048)
			n, from, err := server.ReadFromUDP(buf)
			if err != nil {
				refused <- false
				return
			}
			h := parseHeader(buf[:n], testCIDLen)
			answer, ok := refusal(buf[:n], &h)
			_, _ = server.WriteToUDP(answer, from)
			refused <- ok
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err = quic.DialAddr(ctx, server.LocalAddr().String(), clientTLS(), &quic.Config{Versions: []quic.Version{version}})
		if ok := <-refused; !ok {
			t.Errorf("%v: the client's packet does not open", version)
		}
		if e, ok := errors.AsType[*quic.TransportError](err); !ok || !e.Remote || e.ErrorCode != quic.InvalidToken {
			t.Errorf("%v: client sees %v", version, err)
		}
	}
}

// Looking closely has a rate. C109
func TestRefusalsAreLimited(t *testing.T) {
	var l refusalLimiter
	allowed := 0
	for range 10 * refusalBurst {
		if l.allow(1e9) {
			allowed++
		}
	}
	if allowed != refusalBurst {
		t.Errorf("%d at once, want %d", allowed, refusalBurst)
	}
	if !l.allow(1e9 + int64(time.Second)/refusalsPerSecond) {
		t.Error("none comes in with time")
	}
}

func BenchmarkRefusal(b *testing.B) {
	packet := clientInitial(b, version1, seq(17), seq(5), seq(17), seq(90))
	h := parseHeader(packet, testCIDLen)
	for b.Loop() {
		if _, ok := refusal(packet, &h); !ok {
			b.Fatal("not refused")
		}
	}
}
