package supervisor

import (
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/holdfast-quic/holdfast/connid"
	"github.com/holdfast-quic/holdfast/internal/keys"
	"github.com/holdfast-quic/holdfast/internal/lifeline"
)

const (
	// nonceLease is how many connection-ID nonces a worker gets at a time: enough
	// for days without a supervisor that could grant more.
	nonceLease = 1 << 24
	// nonceBlock is how many are taken from the ledger at a time: each taking
	// is written to disk before it counts, which the loop has to wait for.
	nonceBlock = 64 * nonceLease
)

// keyring is the key store with a block of nonces at hand. A crash skips the
// rest of the block. It belongs to the loop.
type keyring struct {
	store *keys.Store
	block connid.Range
}

func openKeys(spec *Spec, dir string, log *zap.Logger) (*keyring, error) {
	store, err := keys.Open(dir, keys.Options{ServerID: spec.ServerID, TicketPeriod: spec.TicketRotation})
	if err != nil {
		return nil, fmt.Errorf("open the key store: %w", err)
	}
	for _, finding := range store.Findings() {
		log.Warn("key store", zap.String("finding", finding))
	}
	return &keyring{store: store}, nil
}

func (k *keyring) keys() lifeline.Keys { return k.store.Keys() }

// lease grants nonces that were never granted before.
func (k *keyring) lease() (lifeline.NonceLease, error) {
	if k.block.Len() < nonceLease {
		block, err := k.store.Lease(nonceBlock)
		if err != nil {
			return lifeline.NonceLease{}, fmt.Errorf("lease nonces: %w", err)
		}
		k.block = block
	}
	lease := lifeline.NonceLease{From: k.block.From, To: k.block.From + nonceLease}
	k.block.From = lease.To
	return lease, nil
}

// rotateTickets makes a new session ticket key when it is time. Only a new
// generation does: within one, all workers have to understand each other's
// tickets.
func (k *keyring) rotateTickets() error {
	_, err := k.store.RotateTickets(time.Now())
	return err
}
