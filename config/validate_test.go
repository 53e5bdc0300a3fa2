package config

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const (
	anAddress = `expected HOST:PORT with an IP address or nothing as the host and a port from 1 to 65535, such as "127.0.0.1:8443" or "[::]:8443"`
	aName     = `expected a name of letters, digits, '.', '_' and '-', at most 64 characters`
	anAction  = `expected exactly one of respond, files, proxy, whoami and speedtest`
)

// listenerText returns a configuration with the given listeners, one a line
// from line 2.
func listenerText(listeners ...string) string {
	return "listeners:\n- " + strings.Join(listeners, "\n- ") + "\nroutes: [{path: /, whoami: }]\n"
}

func TestListenerFaults(t *testing.T) {
	const ok = `address: ":1", tls: {self_signed: true}`
	const named = `name: a, tls: {self_signed: true}, `
	for _, tc := range [][2]string{
		{`{` + ok + `}`, `2:3: listeners[0].name: found no key "name", ` + aName},
		{`{name: "a b", ` + ok + `}`, `2:10: listeners[0].name: found "a b", ` + aName},
		{`{name: "", ` + ok + `}`, `2:10: listeners[0].name: found "", ` + aName},
		{`{name: 7, ` + ok + `}`, `2:10: listeners[0].name: found 7, ` + aName + `, in quotes`},
		{`{` + named + `address: localhost:80}`, `2:48: listeners[0].address: found "localhost:80", ` + anAddress},
		{`{` + named + `address: "127.0.0.1"}`, `2:48: listeners[0].address: found "127.0.0.1", ` + anAddress},
		{`{` + named + `address: "127.0.0.1:0"}`, `2:48: listeners[0].address: found "127.0.0.1:0", ` + anAddress},
		{`{` + named + `address: ":65536"}`, `2:48: listeners[0].address: found ":65536", ` + anAddress},
		{`{` + named + `address: ":https"}`, `2:48: listeners[0].address: found ":https", ` + anAddress},
		{`{` + named + `address: "::1:80"}`, `2:48: listeners[0].address: found "::1:80", ` + anAddress},
		{`{` + named + `address: "[1.2.3.4]:80"}`, `2:48: listeners[0].address: found "[1.2.3.4]:80", ` + anAddress},
		{`{` + named + `address: 8443}`, `2:48: listeners[0].address: found 8443, ` + anAddress + `, in quotes`},
		{`{name: a, ` + ok + `, protocols: []}`, `2:65: listeners[0].protocols: found no protocols, expected at least one of h3, h2, http/1.1, quic and tcp`},
		{`{name: a, ` + ok + `, protocols: h3}`, `2:65: listeners[0].protocols: found "h3", expected a list, such as [h3, h2, http/1.1]`},
		{`{name: a, ` + ok + `, protocols: [h3, spdy]}`, `2:70: listeners[0].protocols[1]: found "spdy", expected h3, h2, http/1.1, quic or tcp`},
		{`{name: a, ` + ok + `, protocols: [stream]}`, `2:66: listeners[0].protocols[0]: found "stream", which is not available in this version; use h3, h2 or http/1.1`},
		{`{name: a, ` + ok + `, protocols: [h3, h3]}`, `2:70: listeners[0].protocols[1]: found the protocol "h3" a second time, expected each protocol once (first at 2:66)`},
		{`{name: a, ` + ok + `, protocols: [h2], quic: {}}`, `2:77: listeners[0].quic: found settings of h3, expected none, since h3 is not among the protocols`},
		{`{name: a, ` + ok + `, protocols: [h3], advertise_port: 5}`, `2:87: listeners[0].advertise_port: found a port to advertise, expected none, unless the protocols are h3 and one of h2 and http/1.1`},
		{`{name: a, ` + ok + `, advertise_port: 0}`, `2:70: listeners[0].advertise_port: found 0, expected a whole number from 1 to 65535`},
		{`{name: a, ` + ok + `, quic: {retry: on}}`, `2:68: listeners[0].quic.retry: found "on", expected off or always`},
		{`{name: a, ` + ok + `, quic: {keep_alive: 10ms}}`, `2:73: listeners[0].quic.keep_alive: found "10ms", expected 0 or a duration from 1s to 1h, such as "30s"`},
		{`{name: a, address: ":1"}`, `2:3: listeners[0].tls: found no key "tls", expected self_signed: true or a list of certificates`},
		{`{name: a, address: ":1", tls: {}}`, `2:33: listeners[0].tls: found no certificate, expected self_signed: true or a list of certificates`},
		{`{name: a, address: ":1", tls: {self_signed: false}}`, `2:33: listeners[0].tls: found no certificate, expected self_signed: true or a list of certificates`},
		{`{name: a, address: ":1", tls: {certificates: {}}}`, `2:48: listeners[0].tls.certificates: found a mapping, expected a list`},
		{`5`, `2:3: listeners[0]: found 5, expected a mapping with the keys name, address, protocols, tls, quic, advertise_port and drain_timeout`},
	} {
		check(t, listenerText(tc[0]), tc[1])
	}
	check(t, "listeners: []\nroutes: [{path: /, whoami: }]\n", `1:12: listeners: found 0 listeners, expected 1 to 64`)
	check(t, listenerText(`{name: a, `+ok+`}`, `{name: a, address: ":2", tls: {self_signed: true}}`),
		`3:10: listeners[1].name: found the name "a" a second time, expected each name once (first at 2:10)`)
	var many []string
	for i := range 65 {
		many = append(many, fmt.Sprintf(`{name: l%d, address: ":%d", tls: {self_signed: true}}`, i, i+1))
	}
	check(t, listenerText(many...), `1:1: listeners: found 65 listeners, expected 1 to 64`)
	check(t, listenerText(many[:64]...))
}

func TestOverlappingListeners(t *testing.T) {
	for _, tc := range []struct {
		a, b, protoA, protoB string
		overlap              bool
	}{
		{"127.0.0.1:1", "127.0.0.1:1", "h3, h2", "h3, h2", true},
		{"127.0.0.1:1", "127.0.0.1:2", "h3", "h3", false},
		{"127.0.0.1:1", "127.0.0.2:1", "h3", "h3", false},
		{"127.0.0.1:1", "127.0.0.1:1", "h3", "h2", false}, // UDP and TCP
		{"127.0.0.1:1", "127.0.0.1:1", "h2", "http/1.1", true},
		{"0.0.0.0:1", "127.0.0.1:1", "h3", "h3", true},
		{"127.0.0.1:1", "0.0.0.0:1", "h3", "h3", true},
		{"0.0.0.0:1", "[::1]:1", "h3", "h3", false},
		{"[::]:1", "127.0.0.1:1", "h3", "h3", true},
		{"0.0.0.0:1", "[::]:1", "h3", "h3", true},
		{":1", "[::1]:1", "h3", "h3", true},
		{"[::ffff:127.0.0.1]:1", "127.0.0.1:1", "h3", "h3", true},
		{"[fe80::1%a]:1", "[fe80::1%b]:1", "h3", "h3", false},
	} {
		text := listenerText(
			fmt.Sprintf(`{name: a, address: "%s", protocols: [%s], tls: {self_signed: true}}`, tc.a, tc.protoA),
			fmt.Sprintf(`{name: b, address: "%s", protocols: [%s], tls: {self_signed: true}}`, tc.b, tc.protoB))
		if !tc.overlap {
			check(t, text)
			continue
		}
		check(t, text, fmt.Sprintf(`3:22: listeners[1].address: found "%s", expected an address that is not in use by another listener (see 2:22)`, tc.b))
	}
}

// TestDrainTimeoutPerListener: each listener keeps its own limit (C015), and
// the generation lives as long as the longest.
func TestDrainTimeoutPerListener(t *testing.T) {
	c := mustParse(t, `listeners:
- {name: a, address: ":1", tls: {self_signed: true}, drain_timeout: 12h}
- {name: b, address: ":2", tls: {self_signed: true}, drain_timeout: 20s, quic: {idle_timeout: 1m}}
- {name: c, address: ":3", tls: {self_signed: true}, protocols: [h2]}
drain: {timeout: 5m}
routes: [{path: /, whoami: }]
`)
	for i, want := range []time.Duration{12 * time.Hour, 20 * time.Second, 5 * time.Minute} {
		if got := c.Listeners[i].DrainTimeout; got != want {
			t.Errorf("listener %d: %v, want %v", i, got, want)
		}
	}
	if c.DrainTimeout() != 12*time.Hour || c.IdleTimeout() != time.Minute {
		t.Errorf("drain %v, idle %v", c.DrainTimeout(), c.IdleTimeout())
	}
	if l, ok := c.Listener("c"); !ok || l.UDP() || !l.TCP() {
		t.Errorf("listener c: %+v, %v", l, ok)
	}
	if _, ok := c.Listener("d"); ok {
		t.Error("there is no listener d")
	}
}

func TestRouteFaults(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "gw.yaml")
	const aURL = `expected an http or https URL such as "http://127.0.0.1:9000"`
	const aPath = `expected a path that starts with "/"`
	for _, tc := range [][2]string{
		{`{whoami: }`, `3:3: routes[0].path: found no key "path", ` + aPath},
		{`{path: "", whoami: }`, `3:10: routes[0].path: found "", ` + aPath},
		{`{path: api, whoami: }`, `3:10: routes[0].path: found "api", ` + aPath},
		{`{path: "/a b", whoami: }`, `3:10: routes[0].path: found "/a b", ` + aPath},
		{`{path: /a?b, whoami: }`, `3:10: routes[0].path: found "/a?b", ` + aPath},
		{`{path: /.holdfast/probe, whoami: }`, `3:10: routes[0].path: found "/.holdfast/probe", expected a path outside of /.holdfast/, which is reserved`},
		{`{path: /.holdfast, whoami: }`, `3:10: routes[0].path: found "/.holdfast", expected a path outside of /.holdfast/, which is reserved`},
		{`{path: /}`, `3:3: routes[0]: found a route without an action, ` + anAction},
		{`{path: /, whoami: , respond: }`, `3:3: routes[0]: found respond and whoami in one route, ` + anAction},
		{`{path: /, redirect: {}}`, `3:13: routes[0].redirect: found the unknown key "redirect", expected path, respond, files, proxy, whoami or speedtest`},
		{`{path: /, respnd: {}}`, `3:13: routes[0].respnd: found the unknown key "respnd", expected a known key; did you mean "respond"?`},
		{`{path: /, whoami: {x: 1}}`, `3:22: routes[0].whoami.x: found the unknown key "x", expected no keys here`},
		{`{path: /, respond: {status: 600}}`, `3:31: routes[0].respond.status: found 600, expected a whole number from 200 to 599`},
		{`{path: /, respond: {status: 101}}`, `3:31: routes[0].respond.status: found 101, expected a whole number from 200 to 599`},
		{`{path: /, respond: {body: 5}}`, `3:29: routes[0].respond.body: found 5, expected a text, in quotes`},
		{`{path: /, respond: {headers: x}}`, `3:32: routes[0].respond.headers: found "x", expected a mapping from names to values`},
		{`{path: /, respond: {headers: {A: [x]}}}`, `3:36: routes[0].respond.headers.A: found a list, expected a text`},
		{`{path: /, respond: {headers: {"a b": x}}}`, `3:33: routes[0].respond.headers."a b": found "a b", expected the name of a header field`},
		{`{path: /, respond: {headers: {A: "x\ny"}}}`, `3:33: routes[0].respond.headers.A: found "x\ny", expected the value of a header field, without line breaks`},
		{`{path: /, respond: {headers: {A-a: x, A-a: y}}}`, `3:41: routes[0].respond.headers.A-a: found the key "A-a" a second time, expected it once only (first at 3:33)`},
		{`{path: /, respond: {headers: {A-a: x, a-A: y}}}`, `3:41: routes[0].respond.headers.a-A: found the header field "A-A" a second time, expected each header field once (first at 3:33)`},
		{`{path: /, respond: {headers: {content-length: 5}}}`, `3:33: routes[0].respond.headers.content-length: found "content-length", expected a header field that the server does not set itself`},
		{`{path: /, files: {}}`, `3:20: routes[0].files.root: found no key "root", expected the name of a directory`},
		{`{path: /, files: {root: none}}`, fmt.Sprintf(`3:27: routes[0].files.root: found no such file %q, expected the name of a directory`, filepath.Join(dir, "none"))},
		{`{path: /, files: {root: file}}`, fmt.Sprintf(`3:27: routes[0].files.root: found what is no directory %q, expected the name of a directory`, filepath.Join(dir, "file"))},
		{`{path: /, proxy: {}}`, `3:20: routes[0].proxy.upstreams: found no key "upstreams", ` + aURL},
		{`{path: /, proxy: {upstreams: []}}`, `3:32: routes[0].proxy.upstreams: found no upstreams, expected at least one URL`},
		{`{path: /, proxy: {upstreams: ["127.0.0.1:9000"]}}`, `3:33: routes[0].proxy.upstreams[0]: found "127.0.0.1:9000", ` + aURL},
		{`{path: /, proxy: {upstreams: ["ftp://h"]}}`, `3:33: routes[0].proxy.upstreams[0]: found "ftp://h", ` + aURL},
		{`{path: /, proxy: {upstreams: ["http://"]}}`, `3:33: routes[0].proxy.upstreams[0]: found "http://", ` + aURL},
		{`{path: /, proxy: {upstreams: ["http://h:99999"]}}`, `3:33: routes[0].proxy.upstreams[0]: found "http://h:99999", ` + aURL},
		{`{path: /, proxy: {upstreams: ["http://h/?q"]}}`, `3:33: routes[0].proxy.upstreams[0]: found "http://h/?q", ` + aURL},
		{`{path: /, proxy: {upstreams: ["http://me:secret@h"]}}`, `3:33: routes[0].proxy.upstreams[0]: found a URL with a user name, ` + aURL},
		{`{path: /, speedtest: {max_bytes: 0}}`, `3:36: routes[0].speedtest.max_bytes: found 0, expected a size from 1 to 1024GiB, such as "1MiB"`},
	} {
		text := "listeners: [{name: a, address: \":1\", tls: {self_signed: true}}]\nroutes:\n- " + tc[0] + "\n"
		if have := strings.Join(faultsOf(t, name, text), "\n"); have != tc[1] {
			t.Errorf("have\n%s\nwant\n%s", have, tc[1])
		}
	}
	check(t, strings.TrimSuffix(minimal, "- path: /\n  whoami:\n")+"  []\n", `5:1: routes: found no routes, expected at least one`)
	check(t, minimal+"- {path: /, respond: }\n", `8:10: routes[1].path: found the path "/" a second time, expected each path once (first at 6:9)`)
}

// keyPair writes a new certificate and its key to dir.
func keyPair(t *testing.T, dir, name string) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key")
	writePEM(t, cert, "CERTIFICATE", der)
	writePEM(t, key, "PRIVATE KEY", pkcs8)
	return cert, key
}

func writePEM(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

func certText(cert, key string) string {
	return listenerText(fmt.Sprintf(`{name: a, address: ":1", tls: {certificates: [{cert: %s, key: %s}]}}`, cert, key))
}

func TestCertificateFaults(t *testing.T) {
	dir := t.TempDir()
	keyPair(t, dir, "a")
	keyPair(t, dir, "b")
	writePEM(t, filepath.Join(dir, "junk.pem"), "CERTIFICATE", []byte{1, 2, 3})
	writePEM(t, filepath.Join(dir, "junk.key"), "PRIVATE KEY", []byte{1, 2, 3})
	writePEM(t, filepath.Join(dir, "locked.key"), "ENCRYPTED PRIVATE KEY", []byte{1, 2, 3})
	if err := os.WriteFile(filepath.Join(dir, "empty"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "large"), make([]byte, maxFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	const (
		cert    = `2:56: listeners[0].tls.certificates[0].cert: found `
		aCert   = `, expected the name of a PEM file with a certificate chain`
		aKey    = `, expected the name of a PEM file with a private key`
		theKey  = `, expected the private key of the certificate, PEM, not encrypted`
		keyPath = `listeners[0].tls.certificates[0].key: found `
	)
	in := func(name string) string { return fmt.Sprintf("%q", filepath.Join(dir, name)) }
	for _, tc := range [][3]string{
		{"a.pem", "a.key", ""},
		{"none", "a.key", cert + `no such file ` + in("none") + aCert},
		{"a.pem", "none", `2:68: ` + keyPath + `no such file ` + in("none") + aKey},
		{"none", "none", cert + `no such file ` + in("none") + aCert + "\n" + `2:67: ` + keyPath + `no such file ` + in("none") + aKey},
		{".", "a.key", cert + `what is no regular file ` + in("") + aCert},
		{"large", "a.key", cert + `a file of more than 1 MiB ` + in("large") + aCert},
		{"empty", "a.key", cert + `no PEM certificate in ` + in("empty") + aCert},
		{"a.key", "a.key", cert + `no PEM certificate in ` + in("a.key") + aCert},
		{"junk.pem", "a.key", cert + `a damaged certificate (x509: malformed certificate) in ` + in("junk.pem") + aCert},
		{"a.pem", "b.key", `2:68: ` + keyPath + `a private key of another certificate in ` + in("b.key") + theKey},
		{"a.pem", "empty", `2:68: ` + keyPath + `no PEM private key in ` + in("empty") + theKey},
		{"a.pem", "a.pem", `2:68: ` + keyPath + `no PEM private key in ` + in("a.pem") + theKey},
		{"a.pem", "junk.key", `2:68: ` + keyPath + `a damaged private key in ` + in("junk.key") + theKey},
		{"a.pem", "locked.key", `2:68: ` + keyPath + `an encrypted private key in ` + in("locked.key") + theKey},
	} {
		have := strings.Join(faultsOf(t, filepath.Join(dir, "gw.yaml"), certText(tc[0], tc[1])), "\n")
		if have != tc[2] {
			t.Errorf("have\n%s\nwant\n%s", have, tc[2])
		}
	}
	both := strings.Replace(certText("a.pem", "a.key"), "tls: {", "tls: {self_signed: true, ", 1)
	if have := faultsOf(t, filepath.Join(dir, "gw.yaml"), both); len(have) != 1 ||
		have[0] != `2:67: listeners[0].tls.certificates: found both self_signed and certificates, expected one of them` {
		t.Error(have)
	}
}
