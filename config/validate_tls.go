package config

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"strconv"
	"strings"
)

func (v *validator) tls(t *TLS, path string) {
	if !v.ok(path) || !v.set(path) || !v.ok(path+".self_signed") || !v.ok(path+".certificates") {
		return
	}
	switch {
	case t.SelfSigned && v.set(path+".certificates"):
		v.fault(path+".certificates", "both self_signed and certificates", "one of them")
	case !t.SelfSigned && len(t.Certificates) == 0:
		v.fault(path, "no certificate", keyOf("listeners[].tls").expected)
	}
	for i := range t.Certificates {
		v.certificate(&t.Certificates[i], item(path+".certificates", i))
	}
}

func (v *validator) certificate(c *Certificate, path string) {
	chain, okChain := v.read(path+".cert", c.Cert)
	private, okKey := v.read(path+".key", c.Key)
	if okChain {
		if found := chainFault(chain); found != "" {
			v.fault(path+".cert", found+" in "+strconv.Quote(c.Cert), keyOf(certPath).expected)
			return
		}
	}
	if !okChain || !okKey {
		return
	}
	if _, err := tls.X509KeyPair(chain, private); err != nil {
		v.fault(path+".key", keyFault(private, err)+" in "+strconv.Quote(c.Key), "the private key of the certificate, PEM, not encrypted")
		return
	}
	c.chain, c.private = chain, private
}

const certPath = "listeners[].tls.certificates[].cert"

// chainFault says what is wrong with a PEM file of certificates, or "".
func chainFault(chain []byte) string {
	found := "no PEM certificate"
	for {
		var block *pem.Block
		if block, chain = pem.Decode(chain); block == nil {
			return found
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return "a damaged certificate (" + oneLine(err.Error()) + ")"
		}
		found = ""
	}
}

// keyFault says what is wrong with a PEM file of a private key that
// crypto/tls refused.
func keyFault(private []byte, err error) string {
	for {
		var block *pem.Block
		if block, private = pem.Decode(private); block == nil {
			return "no PEM private key"
		}
		if strings.HasPrefix(block.Type, "ENCRYPTED") || block.Headers["DEK-Info"] != "" {
			return "an encrypted private key"
		}
		if strings.HasSuffix(block.Type, "PRIVATE KEY") {
			break
		}
	}
	if strings.Contains(err.Error(), "does not match") {
		return "a private key of another certificate"
	}
	return "a damaged private key"
}

// read returns the content of the file that a key names and remembers it for
// Hash and Payload.
func (v *validator) read(path, file string) ([]byte, bool) {
	if !v.ok(path) || !v.set(path) {
		return nil, false
	}
	if b, ok := v.contents[file]; ok {
		return b, true
	}
	b, err := v.files.read(file)
	if err != nil {
		v.fault(path, fileFault(err, file), keyOf(pattern(path)).expected)
		return nil, false
	}
	v.contents[file] = b
	return b, true
}

func fileFault(err error, file string) string { return reason(err) + " " + strconv.Quote(file) }
