package mem

import (
	"errors"
	"sync/atomic"
	"unsafe"
)

// ErrAlign says that a region does not start on an 8-byte boundary, so that
// 64-bit atomics on it could tear.
var ErrAlign = errors.New("mem: region is not aligned to 8 bytes")

// View is a window on shared bytes. It is a small value: copy it freely. All
// methods may be called from any number of goroutines; whether plain access
// through Bytes is free of races is up to the caller's protocol.
//
// Preconditions of every method that takes an offset: it lies, with the width
// of the access, inside the View and is a multiple of that width. Breaking that
// is a bug of the caller and panics; offsets that come out of shared memory are
// therefore checked before they are used here.
type View struct {
	p unsafe.Pointer
	n int
}

const (
	msgRange = "mem: access outside of the view or misaligned"
	msgSlice = "mem: slice outside of the view"
)

// NewView returns a View of b. The zero-length View is valid. ErrAlign when b
// does not start on an 8-byte boundary.
func NewView(b []byte) (View, error) {
	p := unsafe.Pointer(unsafe.SliceData(b))
	if uintptr(p)&7 != 0 {
		return View{}, ErrAlign
	}
	return View{p: p, n: len(b)}, nil
}

// Len returns the size of the View in bytes.
func (v View) Len() int { return v.n }

// Bytes returns n bytes from off, for plain copies. The slice aliases the
// shared memory and cannot be grown beyond n.
func (v View) Bytes(off, n int) []byte {
	if off < 0 || n < 0 || n > v.n || off > v.n-n {
		panic(msgSlice)
	}
	return unsafe.Slice((*byte)(unsafe.Add(v.p, off)), n)
}

// Sub returns the View of n bytes from off, which must be a multiple of 8.
func (v View) Sub(off, n int) View {
	if off < 0 || n < 0 || n > v.n || off > v.n-n || off&7 != 0 {
		panic(msgSlice)
	}
	return View{p: unsafe.Add(v.p, off), n: n}
}

// Words returns the View as 64-bit words, less the odd bytes at its end. They
// are to be touched with sync/atomic only. It lets a loop over a block of known
// size check its bounds once instead of at every word.
func (v View) Words() []uint64 {
	return unsafe.Slice((*uint64)(v.p), v.n/8)
}

func (v View) at64(off int) *uint64 {
	if off < 0 || off > v.n-8 || off&7 != 0 {
		panic(msgRange)
	}
	return (*uint64)(unsafe.Add(v.p, off))
}

func (v View) at32(off int) *uint32 {
	if off < 0 || off > v.n-4 || off&3 != 0 {
		panic(msgRange)
	}
	return (*uint32)(unsafe.Add(v.p, off))
}

// Load64 reads the word at off.
func (v View) Load64(off int) uint64 { return atomic.LoadUint64(v.at64(off)) }

// Store64 writes the word at off.
func (v View) Store64(off int, x uint64) { atomic.StoreUint64(v.at64(off), x) }

// CAS64 replaces old by x in the word at off and says whether it did.
func (v View) CAS64(off int, old, x uint64) bool {
	return atomic.CompareAndSwapUint64(v.at64(off), old, x)
}

// Swap64 writes x to the word at off and returns what it replaced.
func (v View) Swap64(off int, x uint64) uint64 { return atomic.SwapUint64(v.at64(off), x) }

// Add64 adds x to the word at off, modulo 2^64, and returns the sum.
func (v View) Add64(off int, x uint64) uint64 { return atomic.AddUint64(v.at64(off), x) }

// Or64 sets the bits of x in the word at off and returns what was there before.
func (v View) Or64(off int, x uint64) uint64 { return atomic.OrUint64(v.at64(off), x) }

// And64 keeps only the bits of x in the word at off and returns what was there
// before.
func (v View) And64(off int, x uint64) uint64 { return atomic.AndUint64(v.at64(off), x) }

// Load32 reads the half word at off.
func (v View) Load32(off int) uint32 { return atomic.LoadUint32(v.at32(off)) }

// Store32 writes the half word at off.
func (v View) Store32(off int, x uint32) { atomic.StoreUint32(v.at32(off), x) }

// CAS32 replaces old by x in the half word at off and says whether it did.
func (v View) CAS32(off int, old, x uint32) bool {
	return atomic.CompareAndSwapUint32(v.at32(off), old, x)
}

// Swap32 writes x to the half word at off and returns what it replaced.
func (v View) Swap32(off int, x uint32) uint32 { return atomic.SwapUint32(v.at32(off), x) }

// Add32 adds x to the half word at off, modulo 2^32, and returns the sum.
func (v View) Add32(off int, x uint32) uint32 { return atomic.AddUint32(v.at32(off), x) }
