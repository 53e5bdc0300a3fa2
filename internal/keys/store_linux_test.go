package keys

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/connid"
	"github.com/holdfast-quic/holdfast/internal/lifeline"
)

func newDir(t testing.TB) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "holdfast", "test")
}

func mustOpen(t testing.TB, dir string, o Options) *Store {
	t.Helper()
	s, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustLease(t testing.TB, s *Store, n uint64) connid.Range {
	t.Helper()
	r, err := s.Lease(n)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// copyFile is how an operator gives a host's keys to another.
func copyFile(t testing.TB, from, to string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(from, keysName))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.MkdirAll(to, 0o700), os.WriteFile(filepath.Join(to, keysName), b, 0o600)); err != nil {
		t.Fatal(err)
	}
}

func TestOpenMakesKeys(t *testing.T) {
	dir := newDir(t)
	old := syscall.Umask(0)
	s, err := Open(dir, Options{})
	syscall.Umask(old)
	if err != nil {
		t.Fatal(err)
	}
	k := s.Keys()
	if len(k.StatelessReset) != 32 || len(k.Token) != 32 || len(k.Tickets) != 1 || len(k.Tickets[0]) != 32 ||
		len(k.CID) != 16 || len(k.ServerID) != 3 || k.CIDConfig != 0 {
		t.Errorf("keys have lengths %d %d %d %d %d, configuration %d", len(k.StatelessReset), len(k.Token),
			len(k.Tickets), len(k.CID), len(k.ServerID), k.CIDConfig)
	}
	if _, err := connid.NewRouter(connid.Config{Rotation: k.CIDConfig, ServerID: k.ServerID, Key: k.CID}); err != nil {
		t.Errorf("a router does not take the keys: %v", err)
	}
	if f := s.Findings(); len(f) != 1 || !strings.Contains(f[0], "made new keys") {
		t.Errorf("Findings = %q", f)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode() != fs.ModeDir|0o700 {
		t.Errorf("directory: %v, %v", info.Mode(), err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) < 2 {
		t.Fatalf("directory holds %v, %v", entries, err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: mode %v, %v", e.Name(), info.Mode(), err)
		}
	}

	again := mustOpen(t, dir, Options{})
	if !reflect.DeepEqual(again.Keys(), k) {
		t.Error("keys differ after opening again")
	}
	if f := again.Findings(); len(f) != 0 {
		t.Errorf("Findings of a good directory = %q", f)
	}
	if other := mustOpen(t, newDir(t), Options{}).Keys(); bytes.Equal(other.CID, k.CID) ||
		bytes.Equal(other.Token, k.Token) || bytes.Equal(other.StatelessReset, k.StatelessReset) {
		t.Error("two directories have the same keys")
	}
}

func TestKeysAreTheCallers(t *testing.T) {
	s := mustOpen(t, newDir(t), Options{})
	before, spoilt := s.Keys(), s.Keys()
	clear(spoilt.CID)
	clear(spoilt.Token)
	clear(spoilt.Tickets[0])
	clear(spoilt.ServerID)
	if !reflect.DeepEqual(s.Keys(), before) {
		t.Error("a caller can change the store's keys")
	}
}

func TestServerIDOverride(t *testing.T) {
	dir := newDir(t)
	random := mustOpen(t, dir, Options{}).Keys()
	over := mustOpen(t, dir, Options{ServerID: []byte{0xaa}})
	if k := over.Keys(); !bytes.Equal(k.ServerID, []byte{0xaa}) || !bytes.Equal(k.CID, random.CID) {
		t.Errorf("server ID %x, want aa under the same connection-ID key", k.ServerID)
	}
	if bytes.Equal(over.Keys().StatelessReset, random.StatelessReset) {
		t.Error("the reset key does not depend on the server ID")
	}
	if k := mustOpen(t, dir, Options{}).Keys(); !bytes.Equal(k.ServerID, []byte{0xaa}) {
		t.Errorf("without an override the server ID is %x, want the last one, aa", k.ServerID)
	}
	for _, bad := range [][]byte{{}, {1, 2, 3, 4}} {
		if _, err := Open(dir, Options{ServerID: bad}); !errors.Is(err, ErrServerID) {
			t.Errorf("server ID of %d octets: error %v, want ErrServerID", len(bad), err)
		}
	}
}

// TestLostLedgerCostsTheKey: when it is not known which nonces were used with
// a key, the key is not used again.
func TestLostLedgerCostsTheKey(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, path string){
		"missing": func(t *testing.T, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		},
		"empty": func(t *testing.T, path string) {
			if err := os.Truncate(path, 0); err != nil {
				t.Fatal(err)
			}
		},
		"corrupt": func(t *testing.T, path string) {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			b[len(b)/2] ^= 1
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"of another key": func(t *testing.T, path string) {
			if _, err := connid.CreateLedger(path, make([]byte, 16)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := newDir(t)
			first := mustOpen(t, dir, Options{})
			before := first.Keys()
			mustLease(t, first, 1000)
			spoil(t, filepath.Join(dir, ledgerName))

			if r, err := first.Lease(1); !errors.Is(err, connid.ErrLedger) {
				t.Errorf("Lease of the running store = %v, %v; want ErrLedger", r, err)
			}
			s := mustOpen(t, dir, Options{})
			after := s.Keys()
			if bytes.Equal(after.CID, before.CID) || after.CIDConfig != 1 {
				t.Errorf("connection-ID key new: %v, configuration %d; want a new one, 1",
					!bytes.Equal(after.CID, before.CID), after.CIDConfig)
			}
			if bytes.Equal(after.StatelessReset, before.StatelessReset) {
				t.Error("the reset key does not depend on the configuration")
			}
			if !bytes.Equal(after.ServerID, before.ServerID) || !bytes.Equal(after.Token, before.Token) ||
				!reflect.DeepEqual(after.Tickets, before.Tickets) {
				t.Error("the other keys changed, too")
			}
			if f := s.Findings(); len(f) != 2 || !strings.Contains(f[1], "configuration 0 is now 1") {
				t.Errorf("Findings = %q", f)
			}
			mustLease(t, s, 1)
			if last := mustOpen(t, dir, Options{}); !reflect.DeepEqual(last.Keys(), after) || len(last.Findings()) != 0 {
				t.Errorf("the next start changed the keys again: %q", last.Findings())
			}
		})
	}
}

func TestReplaceCIDWrapsAround(t *testing.T) {
	s := mustOpen(t, newDir(t), Options{})
	seen := map[string]bool{}
	for i := range 2 * rotations {
		k := s.Keys()
		if int(k.CIDConfig) != i%rotations || seen[string(k.CID)] {
			t.Fatalf("after %d replacements: configuration %d, key seen before: %v", i, k.CIDConfig, seen[string(k.CID)])
		}
		seen[string(k.CID)] = true
		mustLease(t, s, 1)
		if err := s.ReplaceCID(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCopyOfAnotherHost: a copied file alone never makes two hosts that can
// answer for each other.
func TestCopyOfAnotherHost(t *testing.T) {
	a, b := newDir(t), newDir(t)
	hostA := mustOpen(t, a, Options{})
	copyFile(t, a, b)
	hostB := mustOpen(t, b, Options{})
	ka, kb := hostA.Keys(), hostB.Keys()
	if bytes.Equal(ka.ServerID, kb.ServerID) || bytes.Equal(ka.StatelessReset, kb.StatelessReset) {
		t.Error("the copy has the server ID or the reset key of the original")
	}
	if !bytes.Equal(ka.CID, kb.CID) || ka.CIDConfig != kb.CIDConfig || !bytes.Equal(ka.Token, kb.Token) || !reflect.DeepEqual(ka.Tickets, kb.Tickets) {
		t.Error("the copy does not share what a fleet shares")
	}
	if f := hostB.Findings(); len(f) != 1 || !strings.Contains(f[0], "is a copy") {
		t.Errorf("Findings = %q", f)
	}
	mustLease(t, hostB, 1)
	again := mustOpen(t, b, Options{})
	if !reflect.DeepEqual(again.Keys(), kb) || len(again.Findings()) != 0 {
		t.Errorf("the second start differs: %q", again.Findings())
	}
	// From here on the copy is a host like any other.
	if err := os.Remove(filepath.Join(b, ledgerName)); err != nil {
		t.Fatal(err)
	}
	if k := mustOpen(t, b, Options{}).Keys(); bytes.Equal(k.CID, kb.CID) {
		t.Error("a lost ledger of the copy does not cost its key")
	}
}

func TestCopyWithServerIDs(t *testing.T) {
	a, b := newDir(t), newDir(t)
	ka := mustOpen(t, a, Options{ServerID: []byte{1}}).Keys()
	copyFile(t, a, b)
	kb := mustOpen(t, b, Options{ServerID: []byte{2}}).Keys()
	if !bytes.Equal(ka.CID, kb.CID) || bytes.Equal(ka.StatelessReset, kb.StatelessReset) || !bytes.Equal(kb.ServerID, []byte{2}) {
		t.Error("the copy shares the wrong things")
	}
}

// TestCopyOverOwnKeys: a host that ran with keys of its own is given those of
// the fleet, and does not throw them away for its ledger of the old key.
func TestCopyOverOwnKeys(t *testing.T) {
	a, b := newDir(t), newDir(t)
	ka := mustOpen(t, a, Options{ServerID: []byte{1}}).Keys()
	hostB := mustOpen(t, b, Options{ServerID: []byte{2}})
	mustLease(t, hostB, 10)
	copyFile(t, a, b)
	if _, err := hostB.RotateTickets(time.Now().Add(48 * time.Hour)); !errors.Is(err, ErrChanged) {
		t.Errorf("RotateTickets over a file that was replaced: error %v, want ErrChanged", err)
	}
	hostB = mustOpen(t, b, Options{ServerID: []byte{2}})
	if !bytes.Equal(hostB.Keys().CID, ka.CID) {
		t.Error("the fleet's key was replaced")
	}
	mustLease(t, hostB, 10)
}

// TestProvisionedFile: the least that an operator has to write.
func TestProvisionedFile(t *testing.T) {
	dir := newDir(t)
	text := fmt.Sprintf(`{"format":1,"cid_config":3,"cid":"%032x","stateless_reset":"%064x","token":"%064x"}`, 1, 2, 3)
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, keysName), []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	k := mustOpen(t, dir, Options{}).Keys()
	if hex.EncodeToString(k.CID) != fmt.Sprintf("%032x", 1) || k.CIDConfig != 3 || len(k.ServerID) != 3 || len(k.Tickets) != 1 {
		t.Errorf("configuration %d, %d octets of server ID, %d tickets", k.CIDConfig, len(k.ServerID), len(k.Tickets))
	}
	if !reflect.DeepEqual(mustOpen(t, dir, Options{}).Keys(), k) {
		t.Error("the second start differs")
	}
}

// TestResetKeyDerivation holds the derivation: were it to change, no client
// would understand a reset after an upgrade.
func TestResetKeyDerivation(t *testing.T) {
	c := content{reset: bytes.Repeat([]byte{0x42}, secretLen), serverID: []byte{1, 2, 3}, cidConfig: 4}
	const want = "46905e9f29adb65aaf82ad6ab1d293f80a02792050b63349ff1551ca4323bb37"
	if got := hex.EncodeToString(c.resetKey()); got != want {
		t.Errorf("reset key = %s, want %s", got, want)
	}
	keys := map[string]bool{}
	for _, d := range []content{
		c,
		{reset: c.reset, serverID: []byte{1, 2}, cidConfig: 4},
		{reset: c.reset, serverID: c.serverID, cidConfig: 5},
		{reset: make([]byte, secretLen), serverID: c.serverID, cidConfig: 4},
		{reset: c.reset, serverID: []byte{1, 2, 3, 0}, cidConfig: 4},
	} {
		keys[string(d.resetKey())] = true
	}
	if len(keys) != 5 {
		t.Errorf("%d distinct reset keys of 5", len(keys))
	}
}

func TestConcurrentFirstOpen(t *testing.T) {
	dir := newDir(t)
	stores := make([]*Store, 4)
	var wg sync.WaitGroup
	for i := range stores {
		wg.Go(func() {
			s, err := Open(dir, Options{})
			if err != nil {
				t.Error(err)
				return
			}
			stores[i] = s
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	ranges := map[connid.Range]bool{}
	for _, s := range stores {
		if !reflect.DeepEqual(s.Keys(), stores[0].Keys()) {
			t.Fatal("two processes made different keys")
		}
		ranges[mustLease(t, s, 5)] = true
	}
	if len(ranges) != len(stores) {
		t.Errorf("%d distinct ranges of %d", len(ranges), len(stores))
	}
}

// TestNoSecretIsPrinted looks for every secret, in the ways that Go prints
// octets, in whatever can be printed of a store.
func TestNoSecretIsPrinted(t *testing.T) {
	dir := newDir(t)
	s := mustOpen(t, dir, Options{})
	k := s.Keys()
	secrets := [][]byte{k.StatelessReset, k.Token, k.Tickets[0], k.CID, s.content.reset}

	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%q", "%d"} {
		fmt.Fprintf(&out, verb+"\n", s)
		fmt.Fprintf(&out, verb+"\n", []any{s})
	}
	b, err := json.Marshal(map[string]any{"store": s})
	if err != nil {
		t.Fatal(err)
	}
	out.Write(b)
	raw, err := os.ReadFile(filepath.Join(dir, keysName))
	if err != nil {
		t.Fatal(err)
	}
	// Errors about a file in which the secrets are, but not where they should be.
	for _, bad := range [][]byte{
		bytes.ReplaceAll(raw, []byte(`"cid"`), []byte(`"`+hex.EncodeToString(k.CID)+`"`)),
		bytes.ReplaceAll(raw, []byte(hex.EncodeToString(k.CID)), []byte(hex.EncodeToString(k.CID)+"zz")),
		bytes.ReplaceAll(raw, []byte(`"format": 1`), []byte(`"format": "`+hex.EncodeToString(k.Token)+`"`)),
		bytes.ReplaceAll(raw, []byte(`"cid_config": 0`), []byte(`"cid_config": "`+hex.EncodeToString(k.Token)+`"`)),
		raw[:len(raw)-20],
		append(bytes.Clone(raw), raw...),
	} {
		if err := os.WriteFile(filepath.Join(dir, keysName), bad, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Open(dir, Options{})
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("error %v, want ErrCorrupt", err)
		}
		fmt.Fprintf(&out, "%v %+v %#v\n", err, err, err)
	}
	fmt.Fprintln(&out, s.Findings())
	for _, secret := range secrets {
		for _, form := range []string{string(secret[:8]), hex.EncodeToString(secret[:8]), fmt.Sprintf("%d", secret[:8])[1:20], fmt.Sprintf("%#v", secret[:4])[8:28]} {
			if strings.Contains(strings.ToLower(out.String()), strings.ToLower(form)) {
				t.Errorf("a secret is in the output:\n%s", &out)
			}
		}
	}
}

func TestKeysTravelAsJSON(t *testing.T) {
	k := mustOpen(t, newDir(t), Options{}).Keys()
	b, err := json.Marshal(k)
	if err != nil {
		t.Fatal(err)
	}
	var back lifeline.Keys
	if err := json.Unmarshal(b, &back); err != nil || !reflect.DeepEqual(back, k) {
		t.Errorf("keys differ after a message: %v", err)
	}
}
