package packetqueue

import "errors"

var (
	// ErrNotQueue says that a region does not hold a formatted queue.
	ErrNotQueue = errors.New("packetqueue: region holds no queue")
	// ErrGeometry says that lanes or lane size are out of range, or do not fit the region.
	ErrGeometry = errors.New("packetqueue: geometry is out of range or does not fit the region")
	// ErrToken says that a token is zero or wider than 48 bits.
	ErrToken = errors.New("packetqueue: token is zero or wider than 48 bits")
	// ErrChannel says that a channel number is not below Channels.
	ErrChannel = errors.New("packetqueue: channel is out of range")
	// ErrNoLane says that other producers hold every lane of the queue.
	ErrNoLane = errors.New("packetqueue: no free lane")
	// ErrFull says that the lane has no room for the record now.
	ErrFull = errors.New("packetqueue: lane is full")
	// ErrTooLarge says that the record can never fit: its payload exceeds MaxPayload or half a lane.
	ErrTooLarge = errors.New("packetqueue: record is too large for the lane")
	// ErrRecord says that a field of the record is out of range.
	ErrRecord = errors.New("packetqueue: record has a field out of range")
	// ErrClosed says that the lane is not the producer's any more: released, reset or damaged.
	ErrClosed = errors.New("packetqueue: lane is closed")
	// ErrCorrupt is wrapped by every fault that Check reports.
	ErrCorrupt = errors.New("packetqueue: queue is damaged")
)
