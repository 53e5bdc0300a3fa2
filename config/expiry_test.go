package config

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"math/big"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestCertificatesOutOfTheirPeriodAreWarnedAbout(t *testing.T) {
	const day = 24 * time.Hour
	now := time.Now().Truncate(time.Second)
	for name, tc := range map[string]struct {
		from, to time.Duration // from now on
		want     string        // with DATE for the one that matters; "" = no warning
		date     time.Duration
	}{
		"good":            {-30 * day, 60 * day, "", 0},
		"expired":         {-90 * day, -time.Second, `the certificate of "gw.example" expired on DATE, and clients refuse it: renew it and reload`, -time.Second},
		"soon":            {-76 * day, 13 * day, `the certificate of "gw.example" expires on DATE: renew it and reload`, 13 * day},
		"not yet":         {time.Hour, 90 * day, `the certificate of "gw.example" is valid from DATE on only, and clients refuse it until then`, time.Hour},
		"short-lived":     {-3 * day, 3 * day, "", 0},
		"short, old":      {-5 * day, day, `the certificate of "gw.example" expires on DATE: renew it and reload`, day},
		"exactly in time": {-76 * day, 14 * day, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			template := &x509.Certificate{
				SerialNumber: big.NewInt(7), DNSNames: []string{"gw.example"}, NotBefore: now.Add(tc.from), NotAfter: now.Add(tc.to),
			}
			der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
			if err != nil {
				t.Fatal(err)
			}
			private, err := x509.MarshalPKCS8PrivateKey(key)
			if err != nil {
				t.Fatal(err)
			}
			cert := filepath.Join(dir, "a.pem")
			writePEM(t, cert, "CERTIFICATE", der)
			writePEM(t, filepath.Join(dir, "a.key"), "PRIVATE KEY", private)
			c, err := Parse(filepath.Join(dir, "gw.yaml"), []byte(certText("a.pem", "a.key")))
			if err != nil {
				t.Fatal(err) // it is no fault
			}
			var got []string
			for _, w := range c.Warnings(now) {
				got = append(got, w.String())
			}
			want := ""
			if tc.want != "" {
				want = cert + ": " + strings.Replace(tc.want, "DATE", now.Add(tc.date).UTC().Format(time.RFC3339), 1)
			}
			if strings.Join(got, "\n") != want {
				t.Errorf("%q, expected %q", got, want)
			}
		})
	}
}

// A certificate is named by what there is, and once however many listeners
// have it.
func TestCertificatesAreNamedOnce(t *testing.T) {
	dir := t.TempDir()
	keyPair(t, dir, "a") // valid for an hour, of the common name a
	listener := `{name: NAME, address: ":PORT", tls: {certificates: [{cert: a.pem, key: a.key}]}}`
	text := "listeners:\n"
	for i, name := range []string{"one", "two"} {
		text += "  - " + strings.NewReplacer("NAME", name, "PORT", []string{"1", "2"}[i]).Replace(listener) + "\n"
	}
	c, err := Parse(filepath.Join(dir, "gw.yaml"), []byte(text+"routes: [{path: /, respond: {}}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Warnings(time.Now().Add(2 * time.Hour)); len(got) != 1 || !strings.Contains(got[0].Text, `"a" expired`) {
		t.Errorf("%v", got)
	}
}
