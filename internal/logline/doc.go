// Package logline is the form of a log line, the same for the supervisor and
// its workers, whose lines end up in one file.
//
// It starts no goroutine and writes nothing: it makes encoders, which zap
// clones for each line.
package logline
