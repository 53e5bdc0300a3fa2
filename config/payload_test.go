package config

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestHashOfAFileAlone(t *testing.T) {
	sum := sha256.Sum256([]byte(minimal))
	want := "sha256:" + hex.EncodeToString(sum[:])
	if got := mustParse(t, minimal).Hash(); got != want {
		t.Errorf("%s, want what sha256sum prints: %s", got, want)
	}
	if got := mustParse(t, minimal+"\n").Hash(); got == want {
		t.Error("another file has the same hash")
	}
}

// TestRenewedCertificateChangesHash, and nothing else about the files does.
func TestRenewedCertificateChangesHash(t *testing.T) {
	dir := t.TempDir()
	cert, key := keyPair(t, dir, "a")
	load := func() *Config {
		c, err := Parse(filepath.Join(dir, "gw.yaml"), []byte(certText("a.pem", "a.key")))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	first := load()
	if load().Hash() != first.Hash() {
		t.Error("the hash is not stable")
	}
	if err := os.Chmod(cert, 0o400); err != nil {
		t.Fatal(err)
	}
	if load().Hash() != first.Hash() {
		t.Error("the mode of a file is in the hash")
	}
	if err := os.Remove(cert); err != nil {
		t.Fatal(err)
	}
	keyPair(t, dir, "a")
	if load().Hash() == first.Hash() {
		t.Error("a renewed certificate has the old hash")
	}

	// A worker that starts now, of the first generation, has the old one.
	for _, f := range []string{cert, key} {
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
	worker, err := FromPayload(first.Payload())
	if err != nil {
		t.Fatal(err)
	}
	have, haveKey := worker.Listeners[0].TLS.Certificates[0].PEM()
	want, wantKey := first.Listeners[0].TLS.Certificates[0].PEM()
	if len(have) == 0 || !bytes.Equal(have, want) || !bytes.Equal(haveKey, wantKey) || worker.Hash() != first.Hash() {
		t.Error("the payload does not hold the certificate")
	}
}

func TestPayloadRoundTrip(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "site"), 0o755); err != nil {
		t.Fatal(err)
	}
	c, err := Parse(filepath.Join(dir, "gw.yaml"), []byte(minimal+"- {path: /f/, files: {root: site}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "site")); err != nil {
		t.Fatal(err)
	}
	t.Chdir("/")
	d, err := FromPayload(c.Payload())
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(c.Routes, d.Routes) || !reflect.DeepEqual(c.Listeners, d.Listeners) || c.Path() != d.Path() || c.Hash() != d.Hash() {
		t.Errorf("have %+v\nwant %+v", d, c)
	}
}

func TestPayloadOfAnotherVersion(t *testing.T) {
	for text, want := range map[string]string{
		`{"version":2}`: "read configuration payload: found version 2, expected 1",
		`x`:             "read configuration payload: invalid character 'x' looking for beginning of value",
	} {
		if _, err := FromPayload([]byte(text)); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestBuiltin(t *testing.T) {
	c := Builtin()
	if c.Path() != BuiltinName || c.Listeners[0].Address != "127.0.0.1:8443" || !c.Listeners[0].TLS.SelfSigned || len(c.Listeners[0].Protocols) != 3 {
		t.Errorf("%+v", c)
	}
	var routes []string
	for _, r := range c.Routes {
		routes = append(routes, r.Path)
	}
	if strings.Join(routes, " ") != "/ /files/ /api/ /whoami /speedtest" {
		t.Error(routes)
	}
	if !c.Routes[1].Files.Builtin() {
		t.Errorf("files come from %s", c.Routes[1].Files.Root)
	}
	if d, err := FromPayload(c.Payload()); err != nil || d.Hash() != c.Hash() || !d.Routes[1].Files.Builtin() {
		t.Error(err)
	}
	// As a file it is valid too, and serves the directory beside it.
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "site"), 0o700); err != nil {
		t.Fatal(err)
	}
	d, err := Parse(filepath.Join(dir, "gw.yaml"), BuiltinYAML())
	if err != nil {
		t.Fatal(err)
	}
	if d.Hash() != c.Hash() || d.Routes[1].Files.Builtin() || d.Routes[1].Files.Root != filepath.Join(dir, "site") {
		t.Errorf("hash %s, files from %s", d.Hash(), d.Routes[1].Files.Root)
	}
}
