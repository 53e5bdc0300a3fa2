package connid

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
)

func TestIDEveryLength(t *testing.T) {
	all := []byte("\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10\x11\x12\x13\x14")
	seen := map[ID]int{}
	for n := range MaxLen + 1 {
		id, err := FromBytes(all[:n])
		if err != nil {
			t.Fatalf("FromBytes of %d octets: %v", n, err)
		}
		if id.Len() != n || !bytes.Equal(id.AppendTo([]byte{0xff}), append([]byte{0xff}, all[:n]...)) {
			t.Errorf("%d octets: Len %d, octets %v", n, id.Len(), id)
		}
		words := id.Words()
		var raw []byte
		for _, w := range words {
			raw = binary.LittleEndian.AppendUint64(raw, w)
		}
		want := append([]byte{byte(n)}, all[:n]...)
		if want = append(want, make([]byte, 24-len(want))...); !bytes.Equal(raw, want) {
			t.Errorf("%d octets: Words hold %x, want %x", n, raw, want)
		}
		if back, ok := FromWords(words); !ok || back != id {
			t.Errorf("FromWords(Words(%v)) = %v, %v", id, back, ok)
		}
		seen[id] = n
	}
	if len(seen) != MaxLen+1 {
		t.Errorf("%d of %d connection IDs are distinct", len(seen), MaxLen+1)
	}
	if _, err := FromBytes(append(all, 0)); !errors.Is(err, ErrTooLong) {
		t.Errorf("FromBytes of 21 octets: error %v, want ErrTooLong", err)
	}
}

func TestIDIsAValue(t *testing.T) {
	b := []byte{1, 2, 3}
	id, err := FromBytes(b)
	if err != nil {
		t.Fatal(err)
	}
	b[0] = 9
	if same, _ := FromBytes([]byte{1, 2, 3}); id != same {
		t.Error("an ID changes with the slice it was made from")
	}
	if zero, _ := FromBytes([]byte{1, 2, 3, 0}); id == zero {
		t.Error("a trailing zero octet does not count")
	}
	if empty, _ := FromBytes(nil); empty != (ID{}) {
		t.Error("the zero ID is not the empty connection ID")
	}
	if id.String() != "010203" {
		t.Errorf("String = %q", id.String())
	}
}

func TestFromWordsRefuses(t *testing.T) {
	for name, w := range map[string][3]uint64{
		"length 21":              {21},
		"length 255":             {255},
		"octet after the end":    {1, 1 << 8},
		"first octet of empty":   {1 << 8},
		"octet beyond the field": {20, 0, 1 << 40},
		"last octet":             {20, 0, 1 << 63},
	} {
		if id, ok := FromWords(w); ok {
			t.Errorf("%s: FromWords = %v, want nothing", name, id)
		}
	}
}

func FuzzFromWords(f *testing.F) {
	f.Add(uint64(0), uint64(0), uint64(0))
	f.Add(^uint64(0), uint64(0), uint64(0))
	f.Add(uint64(0x0102030405060704), uint64(0), uint64(0))
	f.Fuzz(func(t *testing.T, a, b, c uint64) {
		w := [3]uint64{a, b, c}
		if id, ok := FromWords(w); ok && id.Words() != w {
			t.Fatalf("Words(FromWords(%x)) = %x", w, id.Words())
		}
	})
}

func BenchmarkWords(b *testing.B) {
	id, err := FromBytes(make([]byte, 17))
	if err != nil {
		b.Fatal(err)
	}
	var sum uint64
	b.ReportAllocs()
	for b.Loop() {
		w := id.Words()
		sum += w[0] ^ w[1] ^ w[2]
	}
	_ = sum
}
