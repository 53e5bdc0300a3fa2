package connid

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
)

// A ledger's file holds one record, which a person can read:
//
//	connid nonce ledger 1
//	key 5f1d...    which key the nonces belong to, see fingerprintOf
//	next 42        no nonce from here on was handed out
//	sum 90ab...    over all of the above
const recordFormat = "connid nonce ledger 1\nkey %x\nnext %d\n"

const (
	fingerprintLen = 16
	sumLen         = 8
	maxRecordLen   = 256 // more than any record has
)

type fingerprint [fingerprintLen]byte

// fingerprintOf tells keys apart without giving anything away about them.
func fingerprintOf(key []byte) fingerprint {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("connid nonce ledger"))
	return fingerprint(mac.Sum(nil)[:fingerprintLen])
}

type record struct {
	key  fingerprint
	next uint64
}

func (r record) encode() []byte {
	b := fmt.Appendf(nil, recordFormat, r.key, r.next)
	sum := sha256.Sum256(b)
	return fmt.Appendf(b, "sum %x\n", sum[:sumLen])
}

// decodeRecord accepts what encode returns and nothing else.
func decodeRecord(b []byte) (record, bool) {
	var (
		r   record
		key []byte
	)
	if _, err := fmt.Sscanf(string(b), recordFormat, &key, &r.next); err != nil || len(key) != fingerprintLen {
		return record{}, false
	}
	r.key = fingerprint(key)
	return r, bytes.Equal(b, r.encode())
}
