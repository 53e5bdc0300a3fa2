package config

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"time"
)

// warnBefore is the longest time before the end of a certificate at which a
// warning begins: programs that renew certificates have done so long before.
// One that is made for less than four times as long has a last quarter instead.
const warnBefore = 14 * 24 * time.Hour

// Warning is something about a configuration that is no fault.
type Warning struct {
	File string // absolute path
	Text string // what it is, with its date
}

// String returns the warning as a line.
func (w Warning) String() string { return w.File + ": " + w.Text }

// Warnings returns what is wrong at that moment with the periods in which the
// certificates are valid, sorted by file. Such a certificate is served all the
// same: the clients decide, and a reload must not be stuck on it.
func (c *Config) Warnings(now time.Time) []Warning {
	var out []Warning
	for i := range c.Listeners {
		for j := range c.Listeners[i].TLS.Certificates {
			cert := &c.Listeners[i].TLS.Certificates[j]
			for _, text := range periodFaults(cert.chain, now) {
				if w := (Warning{cert.Cert, text}); !slices.Contains(out, w) {
					out = append(out, w)
				}
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Warning) int { return strings.Compare(a.File, b.File) })
	return out
}

// periodFaults looks at each certificate of a PEM file: an intermediate that
// has expired is as bad as the first one.
func periodFaults(chain []byte, now time.Time) []string {
	var out []string
	for {
		var block *pem.Block
		if block, chain = pem.Decode(chain); block == nil {
			return out
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			continue // Parse has refused it
		}
		if text := periodFault(cert, now); text != "" {
			out = append(out, text)
		}
	}
}

func periodFault(cert *x509.Certificate, now time.Time) string {
	date := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
	left := cert.NotAfter.Sub(now)
	switch {
	case left < 0:
		return fmt.Sprintf("the certificate of %s expired on %s, and clients refuse it: renew it and reload", subject(cert), date(cert.NotAfter))
	case cert.NotBefore.After(now):
		return fmt.Sprintf("the certificate of %s is valid from %s on only, and clients refuse it until then", subject(cert), date(cert.NotBefore))
	case left < min(warnBefore, cert.NotAfter.Sub(cert.NotBefore)/4):
		return fmt.Sprintf("the certificate of %s expires on %s: renew it and reload", subject(cert), date(cert.NotAfter))
	}
	return ""
}

// subject names a certificate as its owner knows it.
func subject(cert *x509.Certificate) string {
	switch {
	case len(cert.DNSNames) > 0:
		return quote(cert.DNSNames[0])
	case cert.Subject.CommonName != "":
		return quote(cert.Subject.CommonName)
	case len(cert.IPAddresses) > 0:
		return cert.IPAddresses[0].String()
	}
	return "serial number " + cert.SerialNumber.String()
}
