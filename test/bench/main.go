// Command bench measures Holdfast against plain quic-go in one run, and
// writes the table into docs/performance.md.
//
// Three servers are alive at once: plain quic-go, a Holdfast instance whose
// current generation owns the connections (direct), and one whose connections
// belong to a draining generation, so that every packet passes a queue
// (draining). Each round measures all three one after the other; what counts
// is the median of the per-round ratios, because the speed of the machine
// moves between rounds by more than the differences looked for.
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"flag"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

func main() {
	var (
		plain  = flag.String("plain", "", "serve plain quic-go on this address (used by the benchmark itself)")
		cert   = flag.String("cert", "", "certificate of -plain")
		key    = flag.String("key", "", "key of -plain")
		binary = flag.String("holdfast", "bin/holdfast", "the binary to measure")
		rounds = flag.Int("rounds", 7, "rounds; the median counts")
		length = flag.Duration("length", 2*time.Second, "length of each request and handshake measurement")
		size   = flag.Int64("bytes", 150<<20, "bytes of each transfer")
		micro  = flag.String("micro", "", "only write this output of go test -bench into the page")
		page   = flag.String("page", "", "write the table between the markers of this page")
	)
	flag.Parse()
	var err error
	switch {
	case *plain != "":
		err = servePlain(*plain, *cert, *key)
	case *micro != "":
		err = reportMicro(*micro, *page)
	default:
		err = measure(*binary, *rounds, *length, *size, *page)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func measure(binary string, rounds int, length time.Duration, size int64, page string) error {
	binary, err := filepath.Abs(binary)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "holdfast-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	cert, key, err := selfSigned(dir)
	if err != nil {
		return err
	}
	yardstick, err := startPlain(dir, cert, key)
	if err != nil {
		return err
	}
	defer yardstick.stop()
	direct, err := startHoldfast("direct", binary, dir, cert, key, 1)
	if err != nil {
		return err
	}
	defer direct.stop()
	draining, err := startHoldfast("draining", binary, dir, cert, key, 1)
	if err != nil {
		return err
	}
	defer draining.stop()

	b := &bench{length: length, size: size}
	for _, s := range []*server{yardstick, direct, draining} {
		subject, err := newSubject(s)
		if err != nil {
			return err
		}
		defer subject.close()
		b.subjects = append(b.subjects, subject)
	}
	if _, err := draining.run("reload"); err != nil {
		return err
	}
	for round := range rounds {
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, rounds)
		if err := b.round(context.Background(), round); err != nil {
			return err
		}
	}
	forwarded, err := draining.forwarded()
	if err != nil {
		return err
	}
	if forwarded == 0 {
		return fmt.Errorf("no packet was forwarded: the draining figures would be direct ones")
	}
	if err := report(b, forwarded, page); err != nil {
		return err
	}
	return measureReloads(binary, dir, cert, key, page)
}

// selfSigned writes one certificate that all servers use.
func selfSigned(dir string) (certFile, keyFile string, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
		DNSNames:     []string{"localhost"},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return "", "", err
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return "", "", err
	}
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	if err := os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		return "", "", err
	}
	return certFile, keyFile, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}), 0o600)
}
