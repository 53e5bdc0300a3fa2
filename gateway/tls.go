package gateway

import (
	"crypto/tls"
	"fmt"
)

// certificates parses the PEM of a listener. crypto/tls chooses among them by
// server name and takes the first when none matches.
func certificates(l *Listener) ([]tls.Certificate, error) {
	certs := make([]tls.Certificate, 0, len(l.Certificates))
	for i := range l.Certificates {
		cert, err := tls.X509KeyPair(l.Certificates[i].Chain, l.Certificates[i].Key)
		if err != nil {
			return nil, fmt.Errorf("listener %q, certificate %d: %w", l.Name, i, err)
		}
		certs = append(certs, cert)
	}
	return certs, nil
}

// tlsConfig returns the server's TLS settings for the given ALPN protocols.
// The ticket keys are the instance's, so a session that began in one process,
// generation or start of the service resumes in any other; without keys, this
// process makes its own.
func tlsConfig(certs []tls.Certificate, ticketKeys [][32]byte, protocols []string) *tls.Config {
	c := &tls.Config{
		Certificates: certs,
		NextProtos:   protocols,
		MinVersion:   tls.VersionTLS12,
	}
	if len(ticketKeys) > 0 {
		c.SetSessionTicketKeys(ticketKeys)
	}
	return c
}

// tcpProtocols returns what the listener speaks on TCP, best first.
func tcpProtocols(l *Listener) []string {
	var p []string
	if l.has(ProtocolHTTP2) {
		p = append(p, ProtocolHTTP2)
	}
	if l.has(ProtocolHTTP1) {
		p = append(p, ProtocolHTTP1)
	}
	return p
}
