package cli

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/holdfast-quic/holdfast/gateway"
)

const (
	selfSignedFile = "self-signed.pem"
	selfSignedLife = 10 * 365 * 24 * time.Hour
)

// selfSigned returns the instance's own certificate. It is made once and kept
// in the state directory with its key, so that neither a reload nor a restart
// shows clients another one.
func selfSigned(stateDir string, hosts []string, now time.Time) (gateway.Certificate, error) {
	path := filepath.Join(stateDir, selfSignedFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if data, err = makeCertificate(hosts, now); err == nil {
			err = writePrivate(path, data)
		}
	}
	if err != nil {
		return gateway.Certificate{}, fmt.Errorf("self-signed certificate: %w", err)
	}
	pair, err := tls.X509KeyPair(data, data)
	if err == nil && now.After(pair.Leaf.NotAfter) {
		err = errors.New("it has expired")
	}
	if err != nil {
		return gateway.Certificate{}, fmt.Errorf("self-signed certificate %s: %w; remove the file and a new one is made", path, err)
	}
	return gateway.Certificate{Chain: data, Key: data}, nil
}

// makeCertificate returns a certificate for the hosts and this machine's
// loopback names, followed by its key, as PEM.
func makeCertificate(hosts []string, now time.Time) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{Organization: []string{"Holdfast"}, CommonName: "self-signed"},
		NotBefore:             now.Add(-time.Hour), // clients' clocks differ
		NotAfter:              now.Add(selfSignedLife),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		DNSNames:              []string{"localhost"},
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip == nil {
			template.DNSNames = append(template.DNSNames, host)
		} else if !ip.IsUnspecified() && !ip.IsLoopback() {
			template.IPAddresses = append(template.IPAddresses, ip)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = errors.Join(
		pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.Encode(&out, &pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}),
	)
	return out.Bytes(), err
}

// writePrivate writes a file that only this user can read, whole or not at
// all.
func writePrivate(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".tmp-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // is gone when all went well
	if _, err = f.Write(data); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
