package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/holdfast-quic/holdfast/internal/logline"
)

// An expired certificate is warned about, with file and date, by check and by
// every start and reload; none of them fails for it.
func TestExpiredCertificateIsWarnedAbout(t *testing.T) {
	const day = 24 * time.Hour
	dir := t.TempDir()
	made := time.Now().Add(-selfSignedLife - 7*day)
	pair, err := makeCertificate([]string{"gw.example"}, made)
	if err != nil {
		t.Fatal(err)
	}
	cert := filepath.Join(dir, "pair.pem")
	if err := os.WriteFile(cert, pair, 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "gw.yaml")
	if err := os.WriteFile(path, []byte(`
listeners: [{name: a, address: "127.0.0.1:8443", tls: {certificates: [{cert: pair.pem, key: pair.pem}]}}]
routes: [{path: /, respond: {}}]
`), 0o600); err != nil {
		t.Fatal(err)
	}
	date := made.Add(selfSignedLife).UTC().Format(time.RFC3339)

	code, b := call(t, "check", "--config", path)
	if code != exitDone || !strings.Contains(b.out.String(), "valid") {
		t.Errorf("check: exit code %d, output %q", code, b.out.String())
	}
	oneReason(t, b, "warning", cert, "expired on "+date)

	var log bytes.Buffer
	level := zap.NewAtomicLevel()
	s := &source{path: path, stateDir: dir, log: &logger{
		Logger: zap.New(zapcore.NewCore(logline.Encoder(logline.JSON), zapcore.AddSync(&log), level)), level: level,
	}}
	for range 2 { // a start and a reload
		log.Reset()
		if _, err := s.spec(); err != nil {
			t.Fatal(err)
		}
		if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, `"warn"`) ||
			!strings.Contains(text, cert) || !strings.Contains(text, date) {
			t.Errorf("log %q", text)
		}
	}
}
