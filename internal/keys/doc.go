// Package keys keeps the secrets that all generations of a service share, in
// its state directory, so that address tokens, session tickets and stateless
// resets outlive any process and the host's reboot.
//
// The directory (mode 0700) holds
//
//	keys.json           the secrets, mode 0600; see docs/keys.md
//	nonces.ledger       how far the connection-ID nonces are used up
//	*.lock, *.tmp       of writes to these two
//
// Each change is written to a temporary file, synced and renamed, so a reader
// or a crash sees the old content or the new. Nothing follows a symbolic link
// inside the directory, and what another user owns or may read is refused with
// an error that says how to mend it.
//
// Secrets leave the package in one way only, by [Store.Keys]; no error, format
// verb or JSON encoding of a [Store] holds any of them.
//
// The package starts no goroutine. A Store may be used by several at once.
package keys
