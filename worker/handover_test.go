package worker

import (
	"testing"

	"github.com/holdfast-quic/holdfast/shm"
)

// Connections accepted by one generation go on when the next one reads the
// socket, in each family and on a dual-stack socket. C090, C102
func TestConnectionSurvivesHandover(t *testing.T) {
	for _, tt := range []struct{ name, network, bind, client, host string }{
		{"IPv4", "udp4", "127.0.0.1:0", "udp4", "127.0.0.1"},
		{"IPv6", "udp6", "[::1]:0", "udp6", "::1"},
		{"IPv4 on dual stack", "udp", "[::]:0", "udp4", "127.0.0.1"},
		{"IPv6 on dual stack", "udp", "[::]:0", "udp6", "::1"},
		{"IPv4 wildcard", "udp4", "0.0.0.0:0", "udp4", "127.0.0.1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newService(t)
			sock := s.listen(tt.network, tt.bind)
			a := s.start(0, 1, sock).echo()
			s.current(1)
			a.read(0)
			addr := address(t, sock, tt.host)
			old := s.dial(tt.client, "", addr)
			old.ping(1000)

			b := s.start(1, 2, sock).echo()
			b.read(0)
			s.current(2)
			a.read()
			for range 5 {
				old.ping(1000)
			}
			old.ping(1 << 20)
			fresh := s.dial(tt.client, "", addr)
			fresh.ping(1 << 16)
			old.ping(100)

			if n := b.count(shm.PacketsForwarded); n == 0 {
				t.Error("nothing was forwarded")
			}
			if a.count(shm.QUICAccepted) != 1 || b.count(shm.QUICAccepted) != 1 {
				t.Errorf("accepted %d and %d", a.count(shm.QUICAccepted), b.count(shm.QUICAccepted))
			}
			for c := shm.DropNoLane; c <= shm.DropOrphan; c++ {
				if n := s.segment.Totals()[c]; n != 0 {
					t.Errorf("%v: %d", c, n)
				}
			}
			old.close()
			fresh.close()
			a.stop()
			b.stop()
			s.checkSums()
		})
	}
}
