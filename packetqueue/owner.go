package packetqueue

// Token names a producer: a worker's slot and incarnation in 48 bits.
// Preconditions: incarnation is not 0.
func Token(slot uint16, incarnation uint32) uint64 {
	return uint64(incarnation)<<16 | uint64(slot)
}

const tokenBits = 48

// owner is a lane's owner word: who may write to the lane, for which channel,
// and which lease of the lane it is. The lease count makes a word that was read
// long ago miss: 256 leases by one token to one channel would have to pass
// between a load and its compare-and-swap.
//
//	63             16 15        8 7         2 1     0
//	[ token          | lease     | channel   | state ]
type owner uint64

type state uint8

// The states of a lane and who may change them:
//
//	free    → leased    any producer (Lease)
//	leased  → closing   its producer (Release), the supervisor once that one is dead
//	closing → free      the producer, the supervisor or the consumer, when the lane is empty
//	closing → leased    any producer (Lease), when the lane is empty
//	any     → held → free   the supervisor (Reset), when the consumer is dead
const (
	stateFree    state = 0
	stateLeased  state = 1
	stateClosing state = 2
	stateHeld    state = 3
)

const (
	channelShift = 2
	seqShift     = 8
	tokenShift   = 16
	stateMask    = 1<<channelShift - 1
)

func (o owner) state() state   { return state(o & stateMask) }
func (o owner) channel() uint8 { return uint8(o>>channelShift) & (Channels - 1) }
func (o owner) token() uint64  { return uint64(o >> tokenShift) }

// tenure is the word without its state: equal for as long as one lease lasts.
func (o owner) tenure() owner { return o &^ stateMask }

func (o owner) with(s state) owner { return o.tenure() | owner(s) }

// free is the word of the lane after this lease; held the word during a reset.
func (o owner) free() owner { return o & (0xff << seqShift) }
func (o owner) held() owner { return o.next(0, 0).with(stateHeld) }

// next is the word of the next lease of the lane.
func (o owner) next(token uint64, channel uint8) owner {
	seq := uint8(o>>seqShift) + 1
	return owner(token)<<tokenShift | owner(seq)<<seqShift | owner(channel)<<channelShift | owner(stateLeased)
}

// readBy says whether a consumer of channel has to look at the lane.
func (o owner) readBy(channel uint8) bool {
	s := o.state()
	return (s == stateLeased || s == stateClosing) && o.channel() == channel
}
