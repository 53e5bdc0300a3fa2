package kit

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// RolePlain is the role of quic-go's own HTTP/3 server, without anything of
// the product. Its main function is [PlainMain].
const RolePlain = "plain"

// StartPlain runs a server of that role in a process of its own until the test
// ends, and returns its address. It is the control of scenarios about time: a
// client of it waits as long as the machine makes everybody wait. Each path is
// answered with an empty JSON object: nobody in particular.
func StartPlain(t testing.TB) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), envRole+"="+RolePlain)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = startBound(cmd, false)
	}
	if err != nil {
		t.Fatalf("start plain server: %v", err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("address of the plain server: %v", err)
	}
	return strings.TrimSpace(addr)
}

// PlainMain serves on a free port of loopback and prints its address. It ends
// with the process that started it.
func PlainMain([]string) int {
	err := servePlain()
	fmt.Fprintln(os.Stderr, "plain server:", err)
	return 1
}

func servePlain() error {
	cert, err := selfSigned()
	if err != nil {
		return err
	}
	pc, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return err
	}
	tr := &quic.Transport{Conn: pc}
	l, err := tr.ListenEarly(http3.ConfigureTLSConfig(&tls.Config{Certificates: []tls.Certificate{cert}}), nil)
	if err != nil {
		return err
	}
	fmt.Println(pc.LocalAddr())
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "{}") })
	return (&http3.Server{Handler: handler}).ServeListener(l)
}

// selfSigned makes a certificate of localhost for an hour.
func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"}, NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}
