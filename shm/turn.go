package shm

// Turn says whose the next new connection is while a canary has a share.
//
// A share that is drawn for each connection by itself, by a hash say, is off by
// chance: of 5,000 connections at 50 % by more than one point once in six
// times. Turns keep account instead. The word of a kind of connections holds
// the credit of the canary: what it should have had so far less what it has
// had, in 65536ths of a connection. The chance of the next connection to be
// the canary's is its share plus a sixteenth of the credit. So the share is met
// to within a few connections over any stretch, however short; and whose a
// single connection is stays a matter of chance, so that clients which come in
// a rhythm, two connections each say, do not all meet the same generation.
type Turn struct {
	Generation Generation // whose it is
	word       uint64
}

const (
	// turnPull is the part of the credit that goes into the next chance, as its
	// inverse.
	turnPull = 16
	// maxCredit bounds the credit, in connections: what is beyond is damage, or
	// of a canary that could not take its turns, which is not made up for.
	maxCredit = 64
)

// turnCredit is the credit in a word.
func turnCredit(w uint64) int64 {
	const limit = maxCredit << 16
	return max(min(int64(int32(w)), limit), -limit)
}

// canaryTurn reports whether a connection with the random bits draw is the
// canary's.
func (c Choice) canaryTurn(w uint64, draw uint16) bool {
	return c.Canary != 0 && int64(draw) < int64(c.Share)+turnCredit(w)/turnPull
}

// turnAfter is the word after a connection that the canary took, or not.
func (c Choice) turnAfter(w uint64, canary bool) uint64 {
	credit := turnCredit(w) + int64(c.Share)
	if canary {
		credit -= 1 << 16
	}
	return (w>>32+1)<<32 | uint64(uint32(int32(credit)))
}

// turnDraw makes random bits of the number of a turn, the same in all
// processes (the finalizer of SplitMix64).
func turnDraw(w uint64) uint16 {
	z := (w>>32 + 1) * 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return uint16((z ^ z>>31) >> 48)
}

// QUICTurn decides whose the new connection is whose first connection ID has
// the given hash, and moves the turn on. Who decides must claim the ID for that
// generation in the table, so that what is sent again goes the same way.
func (a *Admission) QUICTurn(c Choice, hash uint64) Generation {
	for {
		w := a.view.Load64(admissionQUIC)
		canary := c.canaryTurn(w, uint16(hash>>48))
		if a.view.CAS64(admissionQUIC, w, c.turnAfter(w, canary)) {
			if canary {
				return c.Canary
			}
			return c.Current
		}
	}
}

// TCPTurn returns whose the next TCP connection is. It moves nothing: all that
// could take the connection see the same turn until one has.
func (a *Admission) TCPTurn(c Choice) Turn {
	t := Turn{Generation: c.Current, word: a.view.Load64(admissionTCP)}
	if c.canaryTurn(t.word, turnDraw(t.word)) {
		t.Generation = c.Canary
	}
	return t
}

// TCPTaken moves the turn on after a connection that counts as taken by a
// generation. If several workers of one took a connection on the same turn,
// each is accounted for.
func (a *Admission) TCPTaken(c Choice, by Generation) {
	for {
		w := a.view.Load64(admissionTCP)
		if a.view.CAS64(admissionTCP, w, c.turnAfter(w, by == c.Canary)) {
			return
		}
	}
}

// ResetTurns begins the accounts anew. The supervisor does so before a canary
// gets its share.
func (a *Admission) ResetTurns() {
	a.view.Store64(admissionQUIC, 0)
	a.view.Store64(admissionTCP, 0)
}
