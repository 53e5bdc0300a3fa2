// Package test holds the scenarios: real processes, real clients, one promise
// a test. A test that covers a case from the field names it in its first
// comment line.
//
// Files go by theme: reload, drain, badconfig, crash, supervise, migrate,
// handshake, resume, network, tcp, signals, memory, corruption. What they are made of
// is package kit.
package test
