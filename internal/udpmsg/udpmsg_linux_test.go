package udpmsg

import (
	"bytes"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pair returns a prepared receiving socket and one to send from.
func pair(t *testing.T, domain int, bind, target string) (in, out int, to Addr) {
	t.Helper()
	open := func(domain int) int {
		fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Skip(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	in = open(domain)
	var sa unix.Sockaddr
	if domain == unix.AF_INET {
		sa = &unix.SockaddrInet4{Addr: [4]byte(net.ParseIP(bind).To4())}
	} else {
		if err := unix.SetsockoptInt(in, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0); err != nil {
			t.Fatal(err)
		}
		sa = &unix.SockaddrInet6{Addr: [16]byte(net.ParseIP(bind).To16())}
	}
	if err := unix.Bind(in, sa); err != nil {
		t.Skip(err)
	}
	for range 2 { // idempotent
		if err := Prepare(in); err != nil {
			t.Fatal(err)
		}
	}
	bound, err := LocalAddr(in)
	if err != nil {
		t.Fatal(err)
	}
	to, ok := AddrFrom(&net.UDPAddr{IP: net.ParseIP(target), Port: int(bound.Port)})
	if !ok {
		t.Fatal(target)
	}
	if to.Family == IPv4 {
		return in, open(unix.AF_INET), to
	}
	return in, open(unix.AF_INET6), to
}

// receive returns the messages that are there, waiting for the first.
func receive(t *testing.T, b *Batch, fd int) int {
	t.Helper()
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if n, err := unix.Poll(p, 5000); n != 1 {
		t.Fatalf("nothing came: %v", err)
	}
	n, errno := b.Receive(fd)
	if errno != 0 {
		t.Fatal(errno)
	}
	return n
}

func segmentSize(oob []byte, size uint16) []byte {
	oob, data := appendControl(oob, unix.IPPROTO_UDP, unix.UDP_SEGMENT, 2)
	data[0], data[1] = byte(size), byte(size>>8)
	return oob
}

func TestSendAndReceive(t *testing.T) {
	for _, tt := range []struct {
		name         string
		domain       int
		bind, target string
	}{
		{"IPv4", unix.AF_INET, "127.0.0.1", "127.0.0.1"},
		{"IPv4 wildcard", unix.AF_INET, "0.0.0.0", "127.0.0.2"},
		{"IPv6", unix.AF_INET6, "::1", "::1"},
		{"IPv6 wildcard", unix.AF_INET6, "::", "::1"},
		{"IPv4 on dual stack", unix.AF_INET6, "::", "127.0.0.3"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in, out, to := pair(t, tt.domain, tt.bind, tt.target)
			b := NewBatch(4, MaxDatagram)
			if _, errno := b.Receive(in); errno != unix.EAGAIN {
				t.Fatalf("empty socket: %v", errno)
			}
			for ecn := range uint8(4) {
				payload := bytes.Repeat([]byte{ecn + 1}, 300)
				if errno := Send(out, to.Family, payload, AppendECN(nil, to.Family, ecn), to); errno != 0 {
					t.Fatal(errno)
				}
				if n := receive(t, b, in); n != 1 {
					t.Fatalf("%d messages", n)
				}
				m := b.Message(0)
				if !bytes.Equal(m.Payload, payload) || m.ECN != ecn || m.Segment != 0 {
					t.Errorf("ECN %d: got %d bytes, ECN %d, segment %d", ecn, len(m.Payload), m.ECN, m.Segment)
				}
				if m.Local.Family != to.Family || !m.Local.SameIP(to) || m.IfIndex == 0 {
					t.Errorf("local address %v on interface %d, want %v", m.Local, m.IfIndex, to)
				}
				if m.Remote.Family != to.Family || m.Remote.Port == 0 {
					t.Errorf("sender %v", m.Remote)
				}
				// And back, from a dual-stack socket too.
				family, err := Family(in)
				if err != nil {
					t.Fatal(err)
				}
				oob := AppendPacketInfo(nil, m.Local, 0)
				if errno := Send(in, family, payload, oob, m.Remote); errno != 0 {
					t.Errorf("answer: %v", errno)
				}
			}
		})
	}
}

func TestReceiveTrain(t *testing.T) {
	in, out, to := pair(t, unix.AF_INET, "127.0.0.1", "127.0.0.1")
	payload := make([]byte, 16*1200+100)
	for i := range payload {
		payload[i] = byte(i / 1200)
	}
	if errno := Send(out, IPv4, payload, segmentSize(nil, 1200), to); errno != 0 {
		t.Fatal(errno)
	}
	b := NewBatch(4, MaxDatagram)
	if n := receive(t, b, in); n != 1 {
		t.Fatalf("%d messages", n)
	}
	if m := b.Message(0); !bytes.Equal(m.Payload, payload) || m.Segment != 1200 {
		t.Errorf("%d bytes in segments of %d", len(m.Payload), m.Segment)
	}
}

// What the kernel drops is told with the next datagram, and by MemoryOf.
func TestDropsAreCounted(t *testing.T) {
	in, out, to := pair(t, unix.AF_INET, "127.0.0.1", "127.0.0.1")
	if err := unix.SetsockoptInt(in, unix.SOL_SOCKET, unix.SO_RCVBUF, 4096); err != nil {
		t.Fatal(err)
	}
	payload := make([]byte, 1000)
	for range 100 {
		if errno := Send(out, IPv4, payload, nil, to); errno != 0 {
			t.Fatal(errno)
		}
	}
	memory, err := MemoryOf(in)
	if err != nil || memory.Dropped == 0 || memory.Limit != 2*4096 {
		t.Fatalf("%+v: %v", memory, err)
	}
	b := NewBatch(64, 2048)
	for {
		if _, errno := b.Receive(in); errno != 0 {
			break
		}
	}
	if errno := Send(out, IPv4, payload, nil, to); errno != 0 {
		t.Fatal(errno)
	}
	receive(t, b, in)
	if m := b.Message(0); !m.HasDropped || m.Dropped != memory.Dropped {
		t.Errorf("told %v %d, want %d", m.HasDropped, m.Dropped, memory.Dropped)
	}
}

func TestWithoutECN(t *testing.T) {
	info := AppendPacketInfo(nil, Addr{Family: IPv4, Addr: [16]byte{127, 0, 0, 1}}, 3)
	gso := segmentSize(nil, 1200)
	mark := AppendECN(nil, IPv6, 1)
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	for _, tt := range []struct {
		name    string
		in, out []byte
		had     bool
	}{
		{"nothing", nil, nil, false},
		{"none", join(info, gso), join(info, gso), false},
		{"only", mark, nil, true},
		{"last", join(info, gso, mark), join(info, gso), true},
		{"first", join(mark, info, gso), join(info, gso), true},
		{"between", join(info, mark, gso), join(info, gso), true},
		{"twice", join(mark, info, AppendECN(nil, IPv4, 2)), info, true},
	} {
		out, had := WithoutECN(nil, tt.in)
		if had != tt.had || !bytes.Equal(out, tt.out) {
			t.Errorf("%s: %x %v", tt.name, out, had)
		}
		if size := SegmentSize(tt.in); (size == 1200) != bytes.Contains(tt.in, gso) {
			t.Errorf("%s: segment size %d", tt.name, size)
		}
	}
}

func TestAddr(t *testing.T) {
	for _, s := range []string{"192.0.2.7:443", "[2001:db8::1]:443", "[fe80::1%7]:9"} {
		u, err := net.ResolveUDPAddr("udp", s)
		if err != nil {
			t.Fatal(err)
		}
		a, ok := AddrFrom(u)
		if !ok || a.String() != s {
			t.Errorf("%s became %v", s, a)
		}
		if back := a.UDPAddr(); back.String() != s || (a.Family == IPv4) != (len(back.IP) == 4) {
			t.Errorf("%s came back as %v with %d bytes", s, back, len(back.IP))
		}
	}
	mapped, _ := AddrFrom(&net.UDPAddr{IP: net.ParseIP("::ffff:192.0.2.1"), Port: 1})
	plain, _ := AddrFrom(&net.UDPAddr{IP: net.IPv4(192, 0, 2, 1).To4(), Port: 1})
	if mapped != plain {
		t.Errorf("mapped %v, plain %v", mapped, plain)
	}
	if _, ok := AddrFrom(&net.UDPAddr{IP: net.IP{1, 2, 3}}); ok {
		t.Error("an address of three bytes")
	}
}

// Control data is the kernel's own, but its lengths are checked all the same.
func FuzzParseControl(f *testing.F) {
	f.Add(AppendPacketInfo(AppendECN(nil, IPv6, 2), Addr{Family: IPv6}, 3))
	f.Add(segmentSize(AppendECN(nil, IPv4, 1), 1200))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m Message
		m.parse(b)
		if m.ECN > ECNMask {
			t.Errorf("ECN %d", m.ECN)
		}
		SegmentSize(b)
		WithoutECN(nil, b)
	})
}

func TestNothingAllocates(t *testing.T) {
	in, out, to := pair(t, unix.AF_INET, "127.0.0.1", "127.0.0.1")
	b := NewBatch(4, MaxDatagram)
	payload, oob := make([]byte, 100), AppendECN(nil, IPv4, 1)
	udp := to.UDPAddr()
	if n := testing.AllocsPerRun(100, func() {
		a, _ := AddrFrom(udp)
		if errno := Send(out, IPv4, payload, oob, a); errno != 0 {
			t.Fatal(errno)
		}
		for deadline := time.Now().Add(time.Second); ; {
			if n, _ := b.Receive(in); n > 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("nothing came")
			}
		}
		b.Message(0)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
