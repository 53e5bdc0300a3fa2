package packetqueue

import (
	"bytes"
	"errors"
	"testing"
)

func TestRecordKeepsEveryField(t *testing.T) {
	region := newRegion(t, 1, 256<<10)
	p, c := mustLease(t, region, Token(3, 9), 63), mustOpen(t, region, 63)
	payload := make([]byte, MaxPayload)
	for i := range payload {
		payload[i] = byte(i * 7)
	}
	in := Record{
		Target:  1<<32 - 1,
		Remote:  Endpoint{Addr: [16]byte{0xfe, 0x80, 15: 1}, Zone: 1<<32 - 1, Port: 1<<16 - 1, Family: 6},
		Local:   Endpoint{Addr: [16]byte{127, 0, 0, 1}, Zone: 5, Port: 443, Family: 4},
		IfIndex: 1<<32 - 2, ECN: 3, Pushed: -1 << 63, Segment: 1200, Payload: payload,
	}
	for _, n := range []int{0, 1, 7, 8, 9, 1200, 16 * 1200, MaxPayload} {
		in.Payload, in.Segment = payload[:n], uint16(min(n, 1200))
		if err := p.Push(&in); err != nil {
			t.Fatal(n, err)
		}
		var out Record
		if !c.Next(&out) || !sameRecord(&in, &out) {
			t.Fatalf("%d bytes: wrote %+v, read %+v", n, in, out)
		}
		if cap(out.Payload) != n {
			t.Errorf("payload of %d bytes can be grown to %d", n, cap(out.Payload))
		}
		c.Done()
	}
	if c.Bad() != 0 {
		t.Error("bad records:", c.Bad())
	}
	expectClean(t, region)
}

func TestPacketsOfRecord(t *testing.T) {
	for _, x := range []struct{ n, segment, want int }{
		{0, 0, 1}, {1200, 0, 1}, {1200, 1200, 1}, {1201, 1200, 2}, {16 * 1200, 1200, 16}, {5, 1, 5},
	} {
		r := Record{Payload: make([]byte, x.n), Segment: uint16(x.segment)}
		if got := r.Packets(); got != x.want {
			t.Errorf("%d bytes in segments of %d: %d packets, want %d", x.n, x.segment, got, x.want)
		}
	}
}

func TestPushRefuses(t *testing.T) {
	region := newRegion(t, 1, 4096)
	p, c := mustLease(t, region, 1, 0), mustOpen(t, region, 0)
	most := make([]byte, 4096/2-recordHeader)
	for name, x := range map[string]struct {
		r    Record
		want error
	}{
		"half a lane":      {Record{Payload: most}, nil},
		"more":             {Record{Payload: make([]byte, len(most)+1)}, ErrTooLarge},
		"over 65535":       {Record{Payload: make([]byte, MaxPayload+1)}, ErrTooLarge},
		"segment":          {Record{Payload: most[:10], Segment: 11}, ErrRecord},
		"ECN":              {Record{Payload: most[:10], ECN: 4}, ErrRecord},
		"remote family":    {Record{Payload: most[:10], Remote: Endpoint{Family: 5}}, ErrRecord},
		"local family":     {Record{Payload: most[:10], Local: Endpoint{Family: 5}}, ErrRecord},
		"no family, no ip": {Record{Payload: most[:10]}, nil},
	} {
		if err := p.Push(&x.r); !errors.Is(err, x.want) {
			t.Errorf("%s: %v, want %v", name, err, x.want)
		}
		var r Record
		if c.Next(&r) != (x.want == nil) {
			t.Errorf("%s: the record is there or not, unlike the answer", name)
		}
		c.Done()
	}
	if big := mustLease(t, newRegion(t, 1, 256<<10), 1, 0); !errors.Is(big.Push(&Record{Payload: make([]byte, MaxPayload+1)}), ErrTooLarge) {
		t.Error("a payload over 65535 bytes fits a large lane")
	}
}

func FuzzRecord(f *testing.F) {
	f.Add(uint32(1), uint32(2), int64(3), uint8(1), uint16(0), uint8(4), uint8(6), []byte("remote, local"), []byte("payload"), uint8(3))
	f.Fuzz(func(t *testing.T, target, ifIndex uint32, pushed int64, ecn uint8, segment uint16, rf, lf uint8, addr, payload []byte, channel uint8) {
		region := newRegion(t, 1, 4096)
		channel %= Channels
		p, c := mustLease(t, region, 1, channel), mustOpen(t, region, channel)
		in := Record{Target: target, IfIndex: ifIndex, Pushed: pushed, ECN: ecn, Segment: segment, Payload: payload}
		in.Remote = Endpoint{Zone: target, Port: segment, Family: rf}
		in.Local = Endpoint{Zone: ifIndex, Port: ^segment, Family: lf}
		copy(in.Remote.Addr[:], addr)
		copy(in.Local.Addr[:], bytes.ToUpper(addr))
		for range 5 { // all the way round the lane
			var out Record
			err := p.Push(&in)
			if got := c.Next(&out); got != (err == nil) {
				t.Fatalf("push says %v, next %v", err, got)
			}
			if err == nil && !sameRecord(&in, &out) {
				t.Fatalf("wrote %+v, read %+v", in, out)
			}
			c.Done()
		}
		if c.Bad() != 0 {
			t.Fatal("an accepted record was bad")
		}
		expectClean(t, region)
	})
}

func TestPushAndNextDoNotAllocate(t *testing.T) {
	region := newRegion(t, 2, testBytes)
	p, c := mustLease(t, region, 1, 0), mustOpen(t, region, 0)
	in := Record{Payload: make([]byte, 1200)}
	var out Record
	if n := testing.AllocsPerRun(1000, func() {
		if p.Push(&in) != nil || !c.Next(&out) {
			t.Fatal("lost")
		}
		c.Done()
		c.Arm()
		c.Disarm()
		_ = p.Push(&in)
		c.Arm()
		c.Next(&out)
		_ = c.Pending()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
