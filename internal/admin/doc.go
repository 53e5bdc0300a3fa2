// Package admin is the client side of the supervisor's admin API: HTTP with
// JSON over a Unix socket in the runtime directory.
//
// Its types are what commands look at, written from the documented interface.
// They are not the supervisor's own, so that a command of one version can talk
// to a supervisor of another; what a command does not know it passes on as it
// came (Client.Get).
//
// A Client is safe for concurrent use and starts no goroutine of its own.
package admin
