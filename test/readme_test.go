package test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/holdfast-quic/holdfast/internal/admin"
	"github.com/holdfast-quic/holdfast/test/kit"
)

// readmeProgram builds the program that README.md shows, on another port, and
// returns its path.
func readmeProgram(t *testing.T, dir, port string) string {
	t.Helper()
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(readme), "```go\n")
	source, _, ok := strings.Cut(rest, "```\n")
	if !ok || strings.Count(source, ":9443") != 1 {
		t.Fatal("README.md has no program that listens on port 9443")
	}
	file := filepath.Join(dir, "main.go")
	if err := os.WriteFile(file, []byte(strings.Replace(source, "9443", port, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "program")
	for _, args := range [][]string{{"vet", file}, {"build", "-o", program, file}} {
		cmd := exec.Command("go", args...)
		cmd.Dir = ".." // of this module, whose packages it imports
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", args[0], err, out)
		}
	}
	return program
}

// writeKeyPair makes cert.pem and key.pem as README.md wants them.
func writeKeyPair(t *testing.T, dir string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"localhost"}}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"cert.pem": {Type: "CERTIFICATE", Bytes: cert}, "key.pem": {Type: "PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// The program in README.md does what README.md says: it echoes, it is reloaded
// by the holdfast command, and its connections outlive that.
func TestReadmeProgram(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("the go command is not installed")
	}
	port := fmt.Sprint(kit.FreePort(t, "127.0.0.1"))
	in := kit.Prepare(t, kit.Options{}) // never started: for its directory and the holdfast command
	dir := in.Dir
	writeKeyPair(t, dir)
	cmd := exec.Command(readmeProgram(t, dir, port))
	cmd.Dir = dir
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	startProgram(t, cmd)
	client := admin.New(filepath.Join(dir, "run", "admin.sock"))
	defer client.Close()
	awaitCurrent(t, client)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	conn, err := quic.DialAddr(ctx, "127.0.0.1:"+port, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"echo"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	echo := func(text string) {
		t.Helper()
		stream, err := conn.OpenStreamSync(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(stream, text); err != nil {
			t.Fatal(err)
		}
		stream.Close()
		if got, err := io.ReadAll(stream); err != nil || string(got) != text {
			t.Fatalf("echo of %q: %q, %v", text, got, err)
		}
	}
	echo("before")

	reload := in.Command(nil, "reload", "--runtime-dir", filepath.Join(dir, "run"))
	if text, err := reload.CombinedOutput(); err != nil || !strings.Contains(string(text), "generation 2 is current") {
		t.Errorf("reload: %v: %s", err, text)
	}
	echo("after")
	s, err := client.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range s.Generations {
		if !strings.HasPrefix(g.ConfigHash, "sha256:") {
			t.Errorf("generation %d has the configuration hash %q", g.ID, g.ConfigHash)
		}
	}
	if err := conn.CloseWithError(0, ""); err != nil {
		t.Error(err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ended with %v: %s", err, out.String())
	}
}
