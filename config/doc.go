// Package config reads and checks the configuration of a Holdfast instance.
//
// Its one job is to turn a YAML file into a Config that is complete (every
// default filled in, every path absolute, every certificate read) or into a
// list of all its faults, each with file, line, column, what was found and
// what was expected. Reading a configuration binds, creates and changes
// nothing.
//
// One table, keys.go, describes every key: its default, its limits, what a
// change of it needs, and the sentence that explains it. The decoder, the JSON
// Schema for editors and the reference in docs/configuration.md are all made
// from that table and from the types in config.go, so they can't disagree.
//
// The package starts no goroutine and keeps no state. A Config is not written
// to after it is returned and may be shared.
package config

//go:generate go test -run Golden -update .
