package kit

import (
	"crypto/aes"
	"crypto/cipher"
	"errors"
)

// SpoilRetryToken flips a bit of the token in a Retry packet of version 1, in
// place, and seals the packet anew (RFC 9001, section 5.8). The client that has
// chosen the connection ID odcid for its first packet takes it for genuine.
func SpoilRetryToken(retry, odcid []byte) error {
	const tagLen = 16
	d := ParseDatagram(retry)
	token := 5 + 1 + len(d.DCID) + 1 + len(d.SCID)
	if d.Type != PacketRetry || len(retry) <= token+tagLen {
		return errors.New("not a Retry packet with a token")
	}
	end := len(retry) - tagLen
	retry[(token+end)/2] ^= 1
	block, err := aes.NewCipher([]byte{
		0xbe, 0x0c, 0x69, 0x0b, 0x9f, 0x66, 0x57, 0x5a, 0x1d, 0x76, 0x6b, 0x54, 0xe3, 0x68, 0xc8, 0x4e,
	})
	if err != nil {
		return err
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return err
	}
	nonce := []byte{0x46, 0x15, 0x99, 0xd3, 0x5d, 0x63, 0x2b, 0xf2, 0x23, 0x98, 0x25, 0xbb}
	pseudo := append([]byte{byte(len(odcid))}, odcid...)
	aead.Seal(retry[:end], nonce, nil, append(pseudo, retry[:end]...))
	return nil
}
