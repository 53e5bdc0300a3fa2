package keys

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-quic/holdfast/connid"
	"github.com/holdfast-quic/holdfast/internal/lifeline"
)

const (
	keysName   = "keys.json"
	ledgerName = "nonces.ledger"
)

// DefaultTicketPeriod is how long a ticket key encrypts unless Options say
// otherwise.
const DefaultTicketPeriod = 24 * time.Hour

// Options of a Store.
type Options struct {
	// ServerID is the QUIC-LB server ID of this host, 1 to 3 octets. Nil: 3
	// random octets, made once and kept.
	ServerID []byte
	// TicketPeriod is how long a ticket key encrypts at least before
	// RotateTickets replaces it; see there for how long it decrypts. 0 means
	// [DefaultTicketPeriod], less than 0 that only Rotate replaces it.
	TicketPeriod time.Duration
}

// Store is the secrets of one service. It holds no descriptor and no lock
// between calls, so there is nothing to close.
type Store struct {
	dir    string
	period time.Duration
	env    env

	mu       sync.Mutex
	content  content
	onDisk   []byte // keys.json as last read or written
	ledger   *connid.Ledger
	findings []string
}

// Open reads the secrets in dir, and makes the directory and new secrets if
// there are none. A missing or corrupt nonce ledger costs the connection-ID
// key: it is replaced, under the next configuration rotation bits, for it is
// not known which nonces were used with it. See [Store.Findings].
//
// The errors of this package say what an operator can do.
func Open(dir string, o Options) (*Store, error) {
	return open(dir, o, systemEnv())
}

func open(dir string, o Options, e env) (*Store, error) {
	if o.ServerID != nil && (len(o.ServerID) == 0 || len(o.ServerID) > maxServerIDLen) {
		return nil, fmt.Errorf("%w: it has %d octets, not 1 to %d", ErrServerID, len(o.ServerID), maxServerIDLen)
	}
	s := &Store{dir: dir, period: o.TicketPeriod, env: e}
	if s.period == 0 {
		s.period = DefaultTicketPeriod
	}
	inode, err := e.openDir(dir)
	if err != nil {
		return nil, err
	}
	err = e.locked(s.path(keysName), func() error { return s.load(inode, o.ServerID) })
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Store) path(name string) string { return filepath.Join(s.dir, name) }

func (s *Store) find(format string, args ...any) {
	s.findings = append(s.findings, fmt.Sprintf(format, args...))
}

// load fills s from the directory.
// Preconditions: the directory is locked.
func (s *Store) load(inode uint64, serverID []byte) error {
	b, err := s.env.read(s.path(keysName))
	if errors.Is(err, fs.ErrNotExist) {
		return s.create(inode, serverID)
	}
	if err != nil {
		return err
	}
	c, fault := decodeContent(b)
	if fault != "" {
		return errCorrupt(s.path(keysName), fault)
	}
	s.content, s.onDisk = c, b
	return s.adopt(inode, serverID)
}

// create makes new secrets. A process that dies between the two writes leaves
// a key without a ledger, which the next one replaces.
func (s *Store) create(inode uint64, serverID []byte) error {
	c := newContent(s.env.now())
	c.instance = inode
	c.serverID = slices.Clone(serverID)
	if c.serverID == nil {
		c.serverID = random(defaultServerIDLen)
	}
	s.find("made new keys in %s", s.dir)
	if err := s.save(c); err != nil {
		return err
	}
	return s.createLedger()
}

// adopt makes the content of keys.json this host's.
func (s *Store) adopt(inode uint64, serverID []byte) error {
	c := s.content
	c.instance = inode
	// A file that was used in another directory is a copy. Two hosts must not
	// share a server ID, unless their operator says so.
	copied := s.content.instance != 0 && s.content.instance != inode
	switch {
	case serverID != nil:
		c.serverID = slices.Clone(serverID)
	case copied || len(c.serverID) == 0:
		c.serverID = random(defaultServerIDLen)
	}
	if copied {
		s.find("%s is a copy of another directory's; it is used with server ID %x here", s.path(keysName), c.serverID)
	}
	if len(c.tickets) == 0 {
		c.tickets = []ticket{newTicket(s.env.now())}
	}
	usedHere := s.content.instance == inode && bytes.Equal(s.content.serverID, c.serverID)

	// The ledger first: keys that look used here, but have no ledger, would
	// have to be replaced.
	replace, err := s.openLedger(usedHere)
	switch {
	case err != nil:
		return err
	case replace:
		return s.replaceCID(c)
	case s.content.equal(&c):
		return nil
	}
	return s.save(c)
}

// openLedger reports whether the connection-ID key must be replaced.
func (s *Store) openLedger(usedHere bool) (replace bool, err error) {
	path := s.path(ledgerName)
	l, err := connid.OpenLedger(path)
	switch {
	case err == nil && l.BoundTo(s.content.cid):
		s.ledger = l
		return false, nil
	case err == nil:
		err = fmt.Errorf("nonce ledger %s belongs to another connection-ID key", path)
	case !errors.Is(err, connid.ErrLedger):
		return false, s.ledgerFault(err)
	default:
		if _, statErr := os.Lstat(path); statErr == nil {
			usedHere = true // corrupt, so some key was used here
		}
	}
	if !usedHere {
		return false, s.createLedger()
	}
	s.find("%v", err)
	return true, nil
}

// ledgerFault turns an error about the ledger's file into one that says which
// rule is broken.
func (s *Store) ledgerFault(err error) error {
	if errors.Is(err, connid.ErrLedgerFile) {
		if _, fault := s.env.read(s.path(ledgerName)); fault != nil {
			return fault
		}
	}
	return explainLedger(s.path(ledgerName), err)
}

func (s *Store) createLedger() error {
	l, err := connid.CreateLedger(s.path(ledgerName), s.content.cid)
	if err != nil {
		return explainLedger(s.path(ledgerName), err)
	}
	s.ledger = l
	return nil
}

// replaceCID saves c with a new connection-ID key and starts its ledger.
func (s *Store) replaceCID(c content) error {
	old := c.cidConfig
	c.cid = random(cidKeyLen)
	c.cidConfig = (c.cidConfig + 1) % rotations
	if err := s.save(c); err != nil {
		return err
	}
	s.find("replaced the connection-ID key: configuration %d is now %d", old, c.cidConfig)
	return s.createLedger()
}

// save makes c the content of keys.json and, if that succeeds, of s.
func (s *Store) save(c content) error {
	b, err := c.encode()
	if err != nil {
		return err
	}
	if err := s.env.replace(s.path(keysName), b); err != nil {
		return err
	}
	s.content, s.onDisk = c, b
	return nil
}

// update saves what change makes of the content, unless keys.json is no longer
// what it was: somebody who put other keys there does not want them undone.
// Preconditions: s.mu is held.
func (s *Store) update(save func(c content) error) error {
	return s.env.locked(s.path(keysName), func() error {
		b, err := s.env.read(s.path(keysName))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if !bytes.Equal(b, s.onDisk) {
			return fmt.Errorf("%s: %w", s.path(keysName), ErrChanged)
		}
		return save(s.content)
	})
}

// Keys returns the secrets as a worker gets them. The slices are the caller's.
func (s *Store) Keys() lifeline.Keys {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &s.content
	k := lifeline.Keys{
		StatelessReset: c.resetKey(),
		Token:          slices.Clone(c.token),
		CID:            slices.Clone(c.cid),
		ServerID:       slices.Clone(c.serverID),
		CIDConfig:      c.cidConfig,
	}
	for _, t := range c.tickets {
		k.Tickets = append(k.Tickets, slices.Clone(t.key))
	}
	return k
}

// Findings says, in sentences for the log, what Open and later calls had to
// make or replace. It is empty when all was as it should be.
func (s *Store) Findings() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.findings)
}

// Lease hands out n nonces for connection IDs under the present key, once and
// for ever, also across processes. It syncs a file. On an error that wraps
// [connid.ErrLedger] or [connid.ErrLedgerFull] the key is used up: call
// ReplaceCID and start a generation with the new key.
func (s *Store) Lease(n uint64) (connid.Range, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.ledger.Lease(n)
	if err != nil {
		return connid.Range{}, s.ledgerFault(err)
	}
	return r, nil
}

// ReplaceCID makes a new connection-ID key under the next configuration
// rotation bits, with a ledger of its own. The key for stateless resets changes
// with it. Processes that have the old keys keep what they leased, but get no
// more.
func (s *Store) ReplaceCID() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.update(s.replaceCID)
}

// Format implements [fmt.Formatter]: no verb prints a secret.
func (s *Store) Format(w fmt.State, _ rune) {
	// fmt.State has no way to tell the caller of a write error.
	_, _ = io.WriteString(w, "keys in "+s.dir)
}

// MarshalText implements [encoding.TextMarshaler], so that an encoder that
// comes by writes what Format does.
func (s *Store) MarshalText() ([]byte, error) { return fmt.Append(nil, s), nil }

func (c *content) equal(d *content) bool {
	return c.instance == d.instance && bytes.Equal(c.serverID, d.serverID) && len(c.tickets) == len(d.tickets)
}
