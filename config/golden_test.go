package config

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files")

const docs = "../docs"

func TestGoldenSchema(t *testing.T) {
	if !json.Valid(Schema()) {
		t.Fatal("not JSON")
	}
	golden(t, filepath.Join(docs, "config.schema.json"), Schema())
}

func TestGoldenReference(t *testing.T) {
	path := filepath.Join(docs, "configuration.md")
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	generated := regexp.MustCompile(`(?s)(<!-- begin: [^\n]*\n).*(<!-- end -->)`)
	if !generated.Match(page) {
		t.Fatalf("%s has no place for the reference", path)
	}
	golden(t, path, generated.ReplaceAllFunc(page, func(b []byte) []byte {
		m := generated.FindSubmatch(b)
		return bytes.Join([][]byte{m[1], Reference(), m[2]}, []byte("\n"))
	}))
}

func golden(t *testing.T, path string, want []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, want) {
		t.Errorf("%s is not what the types say; run go generate ./config", path)
	}
}

// TestDocsExamplesAreValid parses each example of the page and the built-in
// configuration.
func TestDocsExamplesAreValid(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(docs, "configuration.md"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "site"), 0o755); err != nil {
		t.Fatal(err)
	}
	examples := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(page, -1)
	if len(examples) == 0 {
		t.Fatal("no examples")
	}
	for i, m := range examples {
		if _, err := Parse(filepath.Join(dir, "gateway.yaml"), m[1]); err != nil {
			t.Errorf("example %d:\n%v", i, err)
		}
	}
}

// TestDocsErrorsAreReal makes the faults that the page shows.
func TestDocsErrorsAreReal(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(docs, "configuration.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = Parse("gateway.yaml", []byte(`listeners:
  - name: public
    address: "127.0.0.1:8443"
    tls: {self_signed: true}
routes:
  - path: /
    whoami: {}


drain:
  mode: hold
  timout: 1h
listenres:
`))
	want := `gateway.yaml:12:3: drain.timout: found the unknown key "timout", expected a known key; did you mean "timeout"?`
	if err == nil || !bytes.Contains([]byte(err.Error()), []byte(want)) || !bytes.Contains(page, []byte(want)) {
		t.Errorf("%v\nor the page lacks\n%s", err, want)
	}
}
