package worker

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/asn1"
)

// retryTokens reads the tokens that quic-go puts into Retry packets, as far as
// steering needs it: the connection ID that a client uses after a Retry was
// issued by one worker and belongs to no connection yet, so its route must not
// bring the new connection to that worker, which may be draining. Only the
// token tells it from an ID of a connection that lives there.
//
// The format is quic-go's own (internal/handshake/token_generator.go). Should
// it change, a token is not recognized any more and its Initial goes to the
// worker that sent the Retry for as long as that lives, which accepts it.
type retryTokens struct{ key [32]byte }

// answered reports whether token was made for a Retry with source connection
// ID cid. It is asked only for an Initial whose ID has a live route and is not
// in the table.
func (r *retryTokens) answered(token, cid []byte) bool {
	const saltLen = 32
	if len(token) <= saltLen {
		return false
	}
	aead, err := r.aead(token[:saltLen])
	if err != nil || len(token) < saltLen+aead.Overhead() {
		return false
	}
	data, err := aead.Open(nil, nil, token[saltLen:], nil)
	if err != nil {
		return false
	}
	var t struct {
		IsRetryToken             bool
		RemoteAddr               []byte
		Timestamp                int64
		RTT                      int64
		OriginalDestConnectionID []byte
		RetrySrcConnectionID     []byte
	}
	if _, err := asn1.Unmarshal(data, &t); err != nil {
		return false
	}
	return t.IsRetryToken && bytes.Equal(t.RetrySrcConnectionID, cid)
}

func (r *retryTokens) aead(salt []byte) (cipher.AEAD, error) {
	prk, err := hkdf.Extract(sha256.New, r.key[:], salt)
	if err != nil {
		return nil, err
	}
	key, err := hkdf.Expand(sha256.New, prk, "quic-go token source", 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}
