// Package cli is the command line of Holdfast: one file per command.
//
// It is the only place that knows both the configuration and what is made of
// it: options.go maps package config to the supervisor's Spec and the
// gateway's Options. The commands that talk to a running supervisor use its
// admin API (client.go) and nothing else.
//
// Main returns the exit code: 0 done, 1 failed, 2 wrong usage, 3 invalid
// configuration, 4 no supervisor running, 5 timed out. A command that fails
// prints one line of reason on standard error; only the faults of a
// configuration have one line each.
//
// The package starts no goroutine that outlives a command, and reads no
// environment but HOLDFAST_RUNTIME_DIR, XDG_RUNTIME_DIR and XDG_STATE_HOME.
package cli
