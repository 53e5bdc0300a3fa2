package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// buffers are the streams of a command under test.
type buffers struct{ out, err bytes.Buffer }

func testApp(t *testing.T) *app {
	t.Helper()
	return &app{in: strings.NewReader(""), out: &bytes.Buffer{}, err: &bytes.Buffer{}}
}

// call runs a command line and returns exit code and output.
func call(t *testing.T, args ...string) (int, *buffers) {
	t.Helper()
	var b buffers
	a := &app{in: strings.NewReader(""), out: &b.out, err: &b.err}
	return a.main(t.Context(), args), &b
}

// shortDir is a directory whose path leaves room for a socket's.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hf")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// oneReason fails the test unless there is exactly one line of reason.
func oneReason(t *testing.T, b *buffers, parts ...string) {
	t.Helper()
	text := b.err.String()
	if strings.Count(text, "\n") != 1 {
		t.Errorf("reason is not one line: %q", text)
	}
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("reason %q does not name %q", text, part)
		}
	}
}
