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
// what is inside change, a token is not recognized any more and its Initial goes
// to the worker that sent the Retry for as long as that lives, which accepts it.
// Should the encryption change, every token counts as broken: TestRetryTokens
// reads one that quic-go has made.
type retryTokens struct{ key [32]byte }

// tokenKind is what a token says about the Retry that an Initial packet answers.
type tokenKind uint8

const (
	tokenOther    tokenKind = iota // an address token, or of a form that is not known here
	tokenOfRetry                   // made for a Retry that gave out this very connection ID
	tokenMismatch                  // made for a Retry that gave out another one
	tokenBroken                    // not made with our key, or damaged since
)

// kind reads the token of an Initial packet with destination connection ID cid.
// It is asked only for a token that comes with an ID of ours which is not in the
// table.
func (r *retryTokens) kind(token, cid []byte) tokenKind {
	const saltLen = 32
	if len(token) <= saltLen {
		return tokenBroken
	}
	aead, err := r.aead(token[:saltLen])
	if err != nil {
		return tokenOther // no fault of the token
	}
	if len(token) < saltLen+aead.Overhead() {
		return tokenBroken
	}
	data, err := aead.Open(nil, nil, token[saltLen:], nil)
	if err != nil {
		return tokenBroken
	}
	var t struct {
		IsRetryToken             bool
		RemoteAddr               []byte
		Timestamp                int64
		RTT                      int64
		OriginalDestConnectionID []byte
		RetrySrcConnectionID     []byte
	}
	_, err = asn1.Unmarshal(data, &t)
	switch {
	case err != nil || !t.IsRetryToken:
		return tokenOther
	case !bytes.Equal(t.RetrySrcConnectionID, cid):
		return tokenMismatch
	}
	return tokenOfRetry
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
