//go:build race

package connid

// raceEnabled: the race detector makes sync.Pool drop items at random.
const raceEnabled = true
