package packetqueue

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
)

const (
	testLanes = 8
	testBytes = 1 << 14
)

// newRegion returns a formatted queue on a plain slice.
func newRegion(tb testing.TB, lanes, laneBytes int) []byte {
	tb.Helper()
	region := make([]byte, Size(lanes, laneBytes))
	if err := Format(region, lanes, laneBytes); err != nil {
		tb.Fatal(err)
	}
	return region
}

func mustLease(tb testing.TB, region []byte, token uint64, channel uint8) *Producer {
	tb.Helper()
	p, err := Lease(region, token, channel)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

func mustOpen(tb testing.TB, region []byte, channel uint8) *Consumer {
	tb.Helper()
	c, err := OpenConsumer(region, channel)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// numbered fills r with fields and a payload that all follow from producer and
// number, so that a reader can tell any mix-up.
func numbered(r *Record, producer, number, size int) {
	size = max(size, 16)
	r.Target = uint32(producer)
	r.Remote = Endpoint{Addr: [16]byte{1, byte(number)}, Zone: uint32(number), Port: uint16(number), Family: 4}
	r.Local = Endpoint{Addr: [16]byte{2, byte(number >> 8)}, Family: 6}
	r.IfIndex = uint32(number)
	r.ECN = uint8(number & 3)
	r.Segment = 0
	if cap(r.Payload) < size {
		r.Payload = make([]byte, size)
	}
	r.Payload = r.Payload[:size]
	binary.LittleEndian.PutUint64(r.Payload, uint64(producer))
	binary.LittleEndian.PutUint64(r.Payload[8:], uint64(number))
	for i := 16; i < size; i += 61 {
		r.Payload[i] = byte(number + i)
	}
}

// numberOf undoes numbered and verifies every field of r.
func numberOf(r *Record) (producer, number int, err error) {
	if len(r.Payload) < 16 {
		return 0, 0, fmt.Errorf("payload of %d bytes", len(r.Payload))
	}
	producer = int(binary.LittleEndian.Uint64(r.Payload))
	number = int(binary.LittleEndian.Uint64(r.Payload[8:]))
	var want Record
	numbered(&want, producer, number, len(r.Payload))
	for i := 16; i < len(r.Payload); i += 61 {
		if r.Payload[i] != want.Payload[i] {
			return producer, number, fmt.Errorf("producer %d, record %d: byte %d differs", producer, number, i)
		}
	}
	if r.Target != want.Target || r.Remote != want.Remote || r.Local != want.Local || r.IfIndex != want.IfIndex || r.ECN != want.ECN {
		return producer, number, fmt.Errorf("producer %d, record %d: got %+v", producer, number, r)
	}
	return producer, number, nil
}

func mustPush(tb testing.TB, p *Producer, producer, number, size int) {
	tb.Helper()
	var r Record
	numbered(&r, producer, number, size)
	if err := p.Push(&r); err != nil {
		tb.Fatalf("push %d of %d: %v", number, producer, err)
	}
}

// expect reads one record and compares it with what numbered made.
func expect(tb testing.TB, c *Consumer, producer, number int) {
	tb.Helper()
	var r Record
	if !c.Next(&r) {
		tb.Fatalf("nothing to read, want record %d of %d", number, producer)
	}
	gotProducer, got, err := numberOf(&r)
	if err != nil || gotProducer != producer || got != number {
		tb.Fatalf("read record %d of %d (%v), want %d of %d", got, gotProducer, err, number, producer)
	}
}

func expectNothing(tb testing.TB, c *Consumer) {
	tb.Helper()
	var r Record
	if c.Next(&r) {
		tb.Fatalf("read a record that should not be there: %+v", r)
	}
}

func expectClean(tb testing.TB, region []byte) {
	tb.Helper()
	for _, err := range Check(region) {
		tb.Error(err)
	}
}

func sameRecord(a, b *Record) bool {
	x, y := *a, *b
	x.Payload, y.Payload = nil, nil
	return x.Target == y.Target && x.Remote == y.Remote && x.Local == y.Local && x.IfIndex == y.IfIndex &&
		x.ECN == y.ECN && x.Pushed == y.Pushed && x.Segment == y.Segment && bytes.Equal(a.Payload, b.Payload)
}
