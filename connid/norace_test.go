//go:build !race

package connid

const raceEnabled = false
