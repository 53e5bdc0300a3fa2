package kit

import (
	"context"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// plainServer is an HTTP/3 server without anything of the product.
type plainServer struct {
	addr      string
	transport *quic.Transport
	owner     atomic.Uint32 // what whoami says
}

func startPlainServer(t *testing.T, verify bool) *plainServer {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &plainServer{addr: pc.LocalAddr().String()}
	s.owner.Store(1)
	mux := http.NewServeMux()
	mux.HandleFunc(WhoamiPath, func(w http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(w).Encode(Whoami{Generation: 1, Incarnation: s.owner.Load()})
	})
	mux.HandleFunc("/bytes", func(w http.ResponseWriter, _ *http.Request) { w.Write(make([]byte, 1<<20)) })
	mux.HandleFunc("/count", func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n)
	})
	s.transport = &quic.Transport{Conn: pc, StatelessResetKey: &quic.StatelessResetKey{1}}
	if verify {
		s.transport.VerifySourceAddress = func(net.Addr) bool { return true }
	}
	cert, err := selfSigned()
	if err != nil {
		t.Fatal(err)
	}
	conf := http3.ConfigureTLSConfig(&tls.Config{Certificates: []tls.Certificate{cert}})
	l, err := s.transport.ListenEarly(conf, &quic.Config{Allow0RTT: true})
	if err != nil {
		t.Fatal(err)
	}
	server := &http3.Server{Handler: mux}
	done := make(chan struct{})
	go func() {
		defer close(done)
		server.ServeListener(l)
	}()
	t.Cleanup(func() {
		server.Close()
		s.transport.Close()
		pc.Close()
		<-done
	})
	return s
}

func TestFleetCountsRequestsAndStrangers(t *testing.T) {
	s := startPlainServer(t, false)
	f := StartFleet(t, FleetOptions{Client: ClientOptions{Server: s.addr}, N: 5, Interval: 20 * time.Millisecond})
	Eventually(t, 5*time.Second, "requests", func() error { return atLeast(f.Report().Requests, 20) })
	s.owner.Store(2)
	Eventually(t, 5*time.Second, "strangers noticed", func() error { return atLeast(f.Report().Strangers, 5) })
	r := f.Stop()
	if r.Failed != 0 || len(r.Lost) != 0 || r.Strangers != 5 {
		t.Errorf("report %v", r)
	}
	if r.Longest() == 0 || r.Quantile(.5) > r.Longest() {
		t.Errorf("gaps: %v", r)
	}
}

func atLeast(have, want int) error {
	if have >= want {
		return nil
	}
	return fmt.Errorf("%d of %d", have, want)
}

func TestFleetNamesTheCauseOfALoss(t *testing.T) {
	s := startPlainServer(t, false)
	f := StartFleet(t, FleetOptions{Client: ClientOptions{Server: s.addr}, N: 3, Interval: 20 * time.Millisecond})
	Eventually(t, 5*time.Second, "requests", func() error { return atLeast(f.Report().Requests, 3) })
	f.Client(0).Conn().CloseWithError(7, "")
	Eventually(t, 5*time.Second, "loss noticed", func() error { return atLeast(len(f.Report().Lost), 1) })
	if causes := f.Stop().Causes(); causes["application close 0x7 by client"] != 1 {
		t.Errorf("causes %v", causes)
	}
}

func TestMovesKeepTheConnection(t *testing.T) {
	s := startPlainServer(t, false)
	move := func(t *testing.T, o FleetOptions) {
		o.Client, o.N, o.Interval = ClientOptions{Server: s.addr}, 3, 20*time.Millisecond
		f := StartFleet(t, o)
		Eventually(t, 10*time.Second, "moves", func() error { return atLeast(f.Report().Moves, 20) })
		f.Stop().MustBeClean(t)
	}
	t.Run("rebinding", func(t *testing.T) { move(t, FleetOptions{Rebind: 100 * time.Millisecond}) })
	t.Run("migration", func(t *testing.T) { move(t, FleetOptions{Migrate: 100 * time.Millisecond}) })
}

func TestResumptionSendsEarlyData(t *testing.T) {
	s := startPlainServer(t, true)
	o := ClientOptions{
		Server: s.addr, Early: true, Sessions: tls.NewLRUClientSessionCache(1), Tokens: quic.NewLRUTokenStore(1, 1),
	}
	for i := range 2 {
		c, err := Dial(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.GetEarly(context.Background(), WhoamiPath); err != nil {
			t.Fatal(err)
		}
		<-c.Conn().HandshakeComplete()
		if used := c.Conn().ConnectionState().Used0RTT; used != (i == 1) {
			t.Errorf("connection %d: 0-RTT used: %v", i, used)
		}
		c.Close()
	}
}

func TestTransfersAreChecked(t *testing.T) {
	s := startPlainServer(t, false)
	c, err := Dial(context.Background(), ClientOptions{Server: s.addr, StreamWindow: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	down := StartDownload(t, c, "/bytes", 4<<20)
	down.AwaitBytes(t, 1<<19, 5*time.Second)
	sum, _, err := down.Wait(t, 5*time.Second)
	const zeroMiB = "30e14955ebf1352266dc2ff8067e68104607e750abb9d3b36582b8af909fcb58"
	if err != nil || sum != zeroMiB {
		t.Errorf("download: sum %s, %v", sum, err)
	}
	up := StartUpload(t, c, "/count", 1<<20, 0)
	if _, r, err := up.Wait(t, 5*time.Second); err != nil || string(r.Body) != "1048576" {
		t.Errorf("upload: %s, %v", r.Body, err)
	}
}

func TestProberCountsFailures(t *testing.T) {
	s := startPlainServer(t, false)
	p := StartProber(t, ClientOptions{Server: s.addr}, 10*time.Millisecond)
	Eventually(t, 5*time.Second, "attempts", func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		return atLeast(p.result.Attempts, 5)
	})
	p.Stop().MustBeClean(t)
}

func TestRelayImpairsButQUICRepairs(t *testing.T) {
	s := startPlainServer(t, false)
	bad := Impairment{Drop: .02, Duplicate: .1, Reorder: .1, Delay: time.Millisecond, Jitter: time.Millisecond}
	r := StartRelay(t, s.addr, RelayOptions{Seed: 1, ToServer: bad, ToClient: bad})
	client := ClientOptions{Server: r.Addr(), KeepAlive: MovingKeepAlive}
	f := StartFleet(t, FleetOptions{Client: client, N: 3, Interval: 20 * time.Millisecond})
	Eventually(t, 10*time.Second, "requests", func() error { return atLeast(f.Report().Requests, 50) })
	if err := r.Rebind(); err != nil {
		t.Fatal(err)
	}
	Eventually(t, 10*time.Second, "requests after the rebinding", func() error { return atLeast(f.Report().Requests, 100) })
	f.Stop().MustBeClean(t)
}

func TestRelayHoldsBackTheSecondHalfOfAClientHello(t *testing.T) {
	s := startPlainServer(t, false)
	release := make(chan struct{})
	var initials atomic.Int32
	r := StartRelay(t, s.addr, RelayOptions{Filter: func(p Packet) Fate {
		if p.Direction == ToServer && p.N < 2 {
			if ParseDatagram(p.Data).Type == PacketInitial {
				initials.Add(1)
			}
			if p.N == 1 {
				return Fate{Until: release}
			}
		}
		return Fate{}
	}})
	result := make(chan error, 1)
	go func() {
		c, err := Dial(context.Background(), ClientOptions{Server: r.Addr()})
		if err == nil {
			c.Close()
		}
		result <- err
	}()
	Eventually(t, 5*time.Second, "two Initial packets", func() error { return atLeast(int(initials.Load()), 2) })
	close(release)
	if err := <-result; err != nil {
		t.Error(err)
	}
}

func TestParseDatagram(t *testing.T) {
	dcid, scid := []byte{1, 2, 3}, []byte{4, 5}
	for _, c := range []struct {
		name string
		b    []byte
		want PacketType
	}{
		{"initial", LongPacket(Version1, 0, dcid, scid, 1200), PacketInitial},
		{"0-rtt", LongPacket(Version1, 1, dcid, scid, 1200), PacketEarly},
		{"unknown version", LongPacket(0x1a2a3a4a, 0, dcid, scid, 1200), PacketOther},
		{"version negotiation", LongPacket(0, 0, dcid, scid, 60), PacketVersionNegotiation},
		{"cut", LongPacket(Version1, 0, dcid, scid, 1200)[:8], PacketNone},
		{"empty", nil, PacketNone},
	} {
		d := ParseDatagram(c.b)
		if d.Type != c.want {
			t.Errorf("%s: type %v", c.name, d.Type)
		}
		if c.want != PacketNone && hex.EncodeToString(d.DCID)+hex.EncodeToString(d.SCID) != "0102030405" {
			t.Errorf("%s: connection IDs %x %x", c.name, d.DCID, d.SCID)
		}
	}
	if b := ShortPacket(dcid, 40); len(b) != 40 || ParseDatagram(b).Type != PacketShort || string(b[1:4]) != string(dcid) {
		t.Errorf("short packet %x", b)
	}
}

func TestClientsLeaveNoDescriptor(t *testing.T) {
	s := startPlainServer(t, false)
	dial := func() {
		c, err := Dial(context.Background(), ClientOptions{Server: s.addr, Rebindable: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Migrate(context.Background()); err != nil {
			t.Error(err)
		}
		c.Close()
	}
	dial()
	before := Descriptors(os.Getpid())
	for range 5 {
		dial()
	}
	Eventually(t, 5*time.Second, "descriptors closed", func() error {
		if n := Descriptors(os.Getpid()); n > before {
			return fmt.Errorf("%d descriptors, %d before", n, before)
		}
		return nil
	})
}

func TestRawSocketSeesTheReset(t *testing.T) {
	s := startPlainServer(t, false)
	r, err := OpenRaw(s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.Send(ShortPacket(RandomID(4), 100)); err != nil {
		t.Fatal(err)
	}
	answer, err := r.Receive(2 * time.Second)
	if err != nil || ParseDatagram(answer).Type != PacketShort {
		t.Errorf("answer %x, %v", answer, err)
	}
}
