package mem

import (
	"syscall"
	"unsafe"
)

// WriteWord writes the eight bytes of word to a descriptor that never blocks. It
// is one write(2) which Go's scheduler is not told of, since that would wake its
// monitor; 0 is success.
func WriteWord(fd int, word *uint64) syscall.Errno {
	_, _, errno := syscall.RawSyscall(syscall.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(word)), unsafe.Sizeof(*word))
	return errno
}
