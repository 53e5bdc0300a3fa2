//go:build race

package kit

// RaceDetector says whether this binary is built with the race detector.
const RaceDetector = true
