package mem

import (
	"errors"
	"sync"
	"testing"
	"unsafe"
)

// region returns n bytes that start on a 64-byte boundary.
func region(n int) []byte {
	b := make([]byte, n+64)
	shift := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & 63)
	return b[shift : shift+n : shift+n]
}

func view(t *testing.T, n int) View {
	t.Helper()
	v, err := NewView(region(n))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestNewViewRefusesMisalignment(t *testing.T) {
	b := region(64)
	for i := 1; i < 8; i++ {
		if _, err := NewView(b[i:]); !errors.Is(err, ErrAlign) {
			t.Errorf("offset %d: %v", i, err)
		}
	}
	if v, err := NewView(nil); err != nil || v.Len() != 0 || len(v.Words()) != 0 || len(v.Bytes(0, 0)) != 0 {
		t.Errorf("empty view: %v, %v", v, err)
	}
}

func TestAccess(t *testing.T) {
	v := view(t, 64)
	v.Store64(8, 7)
	if !v.CAS64(8, 7, 9) || v.CAS64(8, 7, 1) || v.Load64(8) != 9 {
		t.Error("CAS64")
	}
	if v.Add64(8, 1) != 10 || v.Or64(8, 5) != 10 || v.And64(8, 3) != 15 || v.Swap64(8, 1) != 3 || v.Load64(8) != 1 {
		t.Error("arithmetic on 64 bits")
	}
	v.Store32(20, 7)
	if !v.CAS32(20, 7, 9) || v.CAS32(20, 7, 1) || v.Add32(20, 2) != 11 || v.Swap32(20, 4) != 11 || v.Load32(20) != 4 {
		t.Error("access to 32 bits")
	}
	s := v.Sub(8, 16)
	if s.Len() != 16 || s.Load64(0) != 1 || s.Load32(12) != 4 {
		t.Error("Sub does not alias its parent")
	}
	copy(s.Bytes(0, 8), []byte{1, 2, 3, 4, 5, 6, 7, 8})
	if b := v.Bytes(8, 3); b[2] != 3 || cap(b) != 3 {
		t.Error("Bytes", b, cap(b))
	}
	if w := v.Words(); len(w) != 8 || w[1] != v.Load64(8) {
		t.Error("Words")
	}
	if w := v.Sub(0, 63).Words(); len(w) != 7 {
		t.Error("Words keeps a part of a word")
	}
}

func TestBrokenPreconditionsPanic(t *testing.T) {
	v := view(t, 64)
	const huge = int(^uint(0) >> 1)
	for name, f := range map[string]func(){
		"before":         func() { v.Load64(-8) },
		"after":          func() { v.Store64(64, 0) },
		"across the end": func() { v.Sub(0, 60).Load64(56) },
		"misaligned 64":  func() { v.Add64(4, 1) },
		"misaligned 32":  func() { v.Load32(2) },
		"32 after":       func() { v.CAS32(64, 0, 1) },
		"32 before":      func() { v.Store32(-4, 1) },
		"32 overflow":    func() { v.Load32(huge &^ 3) },
		"64 overflow":    func() { v.Load64(huge &^ 7) },
		"bytes":          func() { v.Bytes(60, 5) },
		"bytes negative": func() { v.Bytes(0, -1) },
		"bytes overflow": func() { v.Bytes(8, huge) },
		"sub":            func() { v.Sub(8, 57) },
		"sub misaligned": func() { v.Sub(4, 8) },
		"sub negative":   func() { v.Sub(-8, 8) },
		"zero view":      func() { View{}.Load64(0) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

func TestAddIsAtomic(t *testing.T) {
	v := view(t, 16)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 10_000 {
				v.Add64(0, 1)
				v.Add32(8, 1)
			}
		})
	}
	wg.Wait()
	if v.Load64(0) != 40_000 || v.Load32(8) != 40_000 {
		t.Errorf("lost updates: %d, %d", v.Load64(0), v.Load32(8))
	}
}

func BenchmarkLoad64(b *testing.B) {
	v, err := NewView(region(4096))
	if err != nil {
		b.Fatal(err)
	}
	var sum uint64
	for i := 0; b.Loop(); i++ {
		sum += v.Load64(i * 8 & 4095)
	}
	_ = sum
}
