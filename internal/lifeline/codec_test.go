package lifeline

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

// one message of every kind, with content where the kind has some.
var samples = []*Message{
	{Kind: KindHello, Hello: &Hello{ProtocolMin: 1, ProtocolMax: 2, ABIMajor: 1, PID: 7}},
	{Kind: KindReady},
	{Kind: KindReadersSet, ReadersSet: &ReadersSet{Seq: 9}},
	{Kind: KindPeerSet, Peer: &Peer{Slot: 3}},
	{Kind: KindNonceRequest},
	{Kind: KindConnsReply, ConnsReply: &ConnsReply{Seq: 1, Last: true}},
	{Kind: KindFailed, Failed: &Failed{Reason: "no"}},
	{Kind: KindDrained},
	{Kind: KindWelcome, Welcome: &Welcome{Slot: 1, Incarnation: 2, Peers: []uint16{0}, Sockets: []Socket{{Listener: 1, Network: "udp"}}}},
	{Kind: KindRefuse, Refuse: &Refuse{Reason: "old"}},
	{Kind: KindReaders, Readers: &Readers{Seq: 4, UDP: map[uint8][]int{0: {1, 2}}}},
	{Kind: KindSocket, Socket: &Socket{Index: 5}},
	{Kind: KindDropSocket, Socket: &Socket{Index: 5}},
	{Kind: KindPeer, Peer: &Peer{Slot: 3}},
	{Kind: KindDrain, Drain: &Drain{Mode: DrainHold, Window: time.Second, Listeners: map[uint8]Limit{1: {Goodbye: time.Second, End: time.Minute}}}},
	{Kind: KindStop, Stop: &Stop{Grace: time.Second}},
	{Kind: KindNonceLease, NonceLease: &NonceLease{From: 1, To: 1 << 40}},
	{Kind: KindConnsQuery, ConnsQuery: &ConnsQuery{Seq: 1}},
	{Kind: KindCloseConn, CloseConn: &CloseConn{Seq: 1, ID: "0.1.2"}},
	{Kind: KindUndrain},
	{Kind: KindReopenLogs},
	{Kind: KindWelcome, Welcome: &Welcome{Protocol: 2, Handover: true, OrphanTimeout: time.Hour}},
	{Kind: KindResume, Resume: &Resume{
		ProtocolMin: 1, ProtocolMax: 2, ABIMajor: 1, ABIMinor: 1, Version: "1.2.3", BuildID: "b", PID: 7, Slot: 3, Incarnation: 9,
		Generation: 2, ConfigHash: "sha256:0", Ready: true, Draining: true, Stopping: true, ReadersSeq: 1 << 40,
		Peers: []uint16{0, 1}, Sockets: []Socket{{Listener: 1, Network: "tcp", Address: "[::1]:443", Index: 2, Retiring: true}},
	}},
	{Kind: KindResumed, Resumed: &Resumed{Protocol: 2}},
}

func TestKeysAreNeverPrinted(t *testing.T) {
	secret := []byte("0123456789abcdef0123456789abcdef")
	keys := Keys{StatelessReset: secret, Token: secret, Tickets: [][]byte{secret}, CID: secret[:16], ServerID: secret[:3]}
	for _, v := range []any{keys, &keys, []Keys{keys}, Welcome{Keys: keys}, &Welcome{Keys: keys}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			text := fmt.Sprintf(verb, v)
			for _, trace := range []string{"0123", "30313233", "48 49", "0x30, 0x31"} {
				if strings.Contains(text, trace) {
					t.Errorf("%T printed with %s shows %q: %s", v, verb, trace, text)
				}
			}
		}
	}
}

func TestEveryKindSurvivesTheWire(t *testing.T) {
	for _, m := range samples {
		wire, err := Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Decode(wire)
		if err != nil {
			t.Fatalf("%s: %v", m.Kind, err)
		}
		if !reflect.DeepEqual(got, m) {
			t.Fatalf("%s: got %+v, want %+v", m.Kind, got, m)
		}
	}
}

func TestMissingContentIsMalformed(t *testing.T) {
	for _, wire := range []string{``, `{}`, `[]`, `{"kind":""}`, `{"kind":"welcome"}`, `{"kind":"stop","stop":null}`, `{"kind":"resume"}`, `{"kind":"resumed"}`, `{"kind":"hello","hello":{"pid":"x"}}`} {
		if m, err := Decode([]byte(wire)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: got %+v, %v", wire, m, err)
		}
	}
}

func TestUnknownKindIsLeftToTheCaller(t *testing.T) {
	m, err := Decode([]byte(`{"kind":"from_the_future","more":1}`))
	if err != nil || m.Kind != "from_the_future" {
		t.Fatalf("%+v, %v", m, err)
	}
}

func TestNegotiate(t *testing.T) {
	for _, c := range []struct{ min, max, want int }{{1, 1, 1}, {1, 2, 2}, {1, 9, 2}, {0, 1, 1}, {2, 9, 2}, {3, 9, 0}, {0, 0, 0}} {
		got, err := Negotiate(&Hello{ProtocolMin: c.min, ProtocolMax: c.max})
		if got != c.want || (err != nil) != (c.want == 0) {
			t.Errorf("%d to %d: got %d, %v", c.min, c.max, got, err)
		}
		if again, err := NegotiateResume(&Resume{ProtocolMin: c.min, ProtocolMax: c.max}); again != got || (err != nil) != (c.want == 0) {
			t.Errorf("%d to %d on resuming: got %d, %v", c.min, c.max, again, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, m := range samples {
		wire, err := Encode(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(wire)
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		m, err := Decode(wire)
		if err != nil {
			return
		}
		if present, known := m.content(); known && !present {
			t.Fatalf("accepted %q without content", m.Kind)
		}
	})
}
