package config

import (
	"crypto/tls"
	"errors"
)

// SetSelfSigned gives the certificate to the listeners that want a self-signed
// one, as PEM, so that it is in the Payload. The slices must not be written to
// afterwards.
func (c *Config) SetSelfSigned(chain, key []byte) {
	for i := range c.Listeners {
		if t := &c.Listeners[i].TLS; t.SelfSigned {
			t.made = Certificate{chain: chain, private: key}
		}
	}
	c.src.made = &made{chain, key}
}

// KeyPairs returns the certificates of the listener for a [tls.Config]. It is
// an error when they are self-signed and SetSelfSigned was not called, neither
// here nor before the Payload that this comes from.
func (l *Listener) KeyPairs() ([]tls.Certificate, error) {
	list := l.TLS.Certificates
	if l.TLS.SelfSigned {
		list = []Certificate{l.TLS.made}
	}
	var pairs []tls.Certificate
	for i := range list {
		chain, private := list[i].PEM()
		if len(chain) == 0 {
			return nil, errors.New("listener " + l.Name + " has no certificate yet")
		}
		pair, err := tls.X509KeyPair(chain, private)
		if err != nil {
			return nil, errors.New("listener " + l.Name + ": its certificate can't be used") // the cause might show a key
		}
		pairs = append(pairs, pair)
	}
	return pairs, nil
}
