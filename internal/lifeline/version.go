package lifeline

import "fmt"

// Negotiate returns the highest protocol version that this build and the
// sender of h both speak, or ErrVersion with both ranges named.
func Negotiate(h *Hello) (int, error) { return negotiate(h.ProtocolMin, h.ProtocolMax) }

// NegotiateResume is Negotiate for a worker that introduces itself to its next
// supervisor.
func NegotiateResume(r *Resume) (int, error) { return negotiate(r.ProtocolMin, r.ProtocolMax) }

func negotiate(theirMin, theirMax int) (int, error) {
	version := min(ProtocolMax, theirMax)
	if version < max(ProtocolMin, theirMin) {
		return 0, fmt.Errorf("%w: this side speaks %d to %d, the other %d to %d",
			ErrVersion, ProtocolMin, ProtocolMax, theirMin, theirMax)
	}
	return version, nil
}
