// Package mem gives typed, atomic access to a region of memory that several
// processes share.
//
// It is the only package that turns bytes into pointers: everything above it
// works on a View and stays within its bounds. A View does not own its memory.
// Whoever mapped the region keeps it mapped for as long as a View of it is in
// use.
//
// Atomics are sequentially consistent, within one process and across processes
// that map the same pages. Words are in the byte order of the host.
//
// The package starts no goroutine and allocates nothing.
package mem
