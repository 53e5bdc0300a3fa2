package connid

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
)

// Limits of the draft, in octets.
const (
	minServerIDLen = 1
	minNonceLen    = 4
	minTextLen     = 5  // server ID and nonce together
	maxTextLen     = 19 // leaves one octet of a 20 octet connection ID
	keyLen         = 16 // AES-128
	maxRotation    = 6  // 7 marks connection IDs that no balancer can route
)

// Config is a QUIC-LB configuration. All parties that read or write the
// connection IDs of one service need the same one, except for the server ID.
//
// A Config prints without its key, whatever the verb.
type Config struct {
	// Rotation is the value of the configuration rotation bits, 0 to 6.
	Rotation uint8
	// ServerID names the host, at least 1 octet.
	ServerID []byte
	// NonceLen is the length of the nonce in octets, at least 4. Server ID
	// and nonce have 5 to 19 octets together.
	NonceLen int
	// Key is the AES-128 key, 16 octets. Nil leaves connection IDs plain:
	// anyone can read the server ID and link connection IDs by their nonces.
	Key []byte
	// EncodeLength puts the length of what follows into the lower five bits
	// of the first octet. Otherwise they are random.
	EncodeLength bool
}

// Format implements [fmt.Formatter] so that no verb prints the key.
func (c Config) Format(w fmt.State, _ rune) { c.format(w, c.Key != nil) }

// MarshalJSON leaves the key out.
func (c Config) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Rotation     uint8
		ServerID     string
		NonceLen     int
		Encrypted    bool
		EncodeLength bool
	}{c.Rotation, hex.EncodeToString(c.ServerID), c.NonceLen, c.Key != nil, c.EncodeLength})
}

func (c Config) format(w fmt.State, encrypted bool) {
	// fmt.State has no way to tell the caller of a write error.
	_, _ = fmt.Fprintf(w, "{rotation:%d server_id:%x nonce_len:%d encrypted:%t encode_length:%t}",
		c.Rotation, c.ServerID, c.NonceLen, encrypted, c.EncodeLength)
}

func (c Config) validate() error {
	text := len(c.ServerID) + c.NonceLen
	switch {
	case c.Rotation > maxRotation:
		return fmt.Errorf("%w: rotation bits are %d, not 0 to %d", ErrConfig, c.Rotation, maxRotation)
	case len(c.ServerID) < minServerIDLen:
		return fmt.Errorf("%w: server ID is empty", ErrConfig)
	case c.NonceLen < minNonceLen:
		return fmt.Errorf("%w: nonce has %d octets, fewer than %d", ErrConfig, c.NonceLen, minNonceLen)
	case text < minTextLen || text > maxTextLen:
		return fmt.Errorf("%w: server ID and nonce have %d octets together, not %d to %d", ErrConfig, text, minTextLen, maxTextLen)
	case c.Key != nil && len(c.Key) != keyLen:
		return fmt.Errorf("%w: key has %d octets, not %d", ErrConfig, len(c.Key), keyLen)
	}
	return nil
}
