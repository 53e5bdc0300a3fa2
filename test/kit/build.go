package kit

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// builds are the programs that tests have built, by what they are.
var builds struct {
	mu   sync.Mutex
	dir  string
	made map[string]string
}

// Build returns the path of a build of the product with that version. Each
// version is built once for all tests of a process.
func Build(t testing.TB, version string) string {
	t.Helper()
	return build(t, "holdfast-"+version, "-ldflags", "-X github.com/holdfast-quic/holdfast/internal/build.version="+version, "../cmd/holdfast")
}

// BadBuild puts a build with a fault, named as in testdata/builds, into a
// directory and returns its path.
func BadBuild(t testing.TB, dir, fault string) string {
	t.Helper()
	return Install(t, build(t, "faults", "./testdata/builds"), filepath.Join(dir, fault))
}

// BuildOther returns the path of a build of another program: a directory, from
// that of the test on, and what go build is to be told besides. Each is built
// once for all tests of a process.
func BuildOther(t testing.TB, dir string, flags ...string) string {
	t.Helper()
	name := strings.Map(func(r rune) rune {
		if r == '/' || r == ' ' {
			return '-'
		}
		return r
	}, strings.Join(append([]string{filepath.Base(dir)}, flags...), "_"))
	return build(t, name, append(flags, dir)...)
}

func build(t testing.TB, name string, args ...string) string {
	t.Helper()
	builds.mu.Lock()
	defer builds.mu.Unlock()
	if path := builds.made[name]; path != "" {
		return path
	}
	if builds.dir == "" {
		dir, err := os.MkdirTemp("", "hfbuilds")
		if err != nil {
			t.Fatal(err)
		}
		builds.dir, builds.made = dir, map[string]string{}
	}
	path := filepath.Join(builds.dir, name)
	if out, err := exec.Command("go", append([]string{"build", "-o", path}, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", name, err, out)
	}
	builds.made[name] = path
	return path
}

// removeBuilds ends what Build has made.
func removeBuilds() {
	builds.mu.Lock()
	defer builds.mu.Unlock()
	if builds.dir != "" {
		os.RemoveAll(builds.dir)
	}
}

// Install copies a program to a path as package managers do: beside it, then
// renamed over it.
func Install(t testing.TB, from, to string) string {
	t.Helper()
	if err := install(from, to); err != nil {
		t.Fatal(err)
	}
	return to
}

func install(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to+".new", os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err = io.Copy(out, in); err == nil {
		err = out.Close()
	}
	if err != nil {
		return fmt.Errorf("install %s: %w", to, err)
	}
	return os.Rename(out.Name(), to)
}
