package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

const manDir = "../../docs/man"

func TestManualPagesAreCurrent(t *testing.T) {
	pages := manPages(testApp(t).root())
	for name, want := range pages {
		got, err := os.ReadFile(filepath.Join(manDir, name))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s does not fit the commands (%v): run go generate ./internal/cli", name, err)
		}
	}
	files, err := filepath.Glob(filepath.Join(manDir, "holdfast*.8"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if _, ok := pages[filepath.Base(f)]; !ok {
			t.Errorf("%s describes a command that there is not", f)
		}
	}
}
