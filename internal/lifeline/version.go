package lifeline

import "fmt"

// Negotiate returns the highest protocol version that this build and the
// sender of h both speak, or ErrVersion with both ranges named.
func Negotiate(h *Hello) (int, error) {
	version := min(ProtocolMax, h.ProtocolMax)
	if version < max(ProtocolMin, h.ProtocolMin) {
		return 0, fmt.Errorf("%w: this side speaks %d to %d, the other %d to %d",
			ErrVersion, ProtocolMin, ProtocolMax, h.ProtocolMin, h.ProtocolMax)
	}
	return version, nil
}
