package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"
)

// envRuntimeDir names the runtime directory when no flag does.
const envRuntimeDir = "HOLDFAST_RUNTIME_DIR"

// maxSocketPath is the longest path of a Unix socket (unix(7)).
const maxSocketPath = 107

// instance says which supervisor is meant.
type instance struct {
	name       string
	runtimeDir string
	stateDir   string
}

// runtimeFlags adds the flags that find a supervisor.
func (i *instance) runtimeFlags(c *cobra.Command) {
	c.Flags().StringVar(&i.name, "name", "default", "name of the instance")
	c.Flags().StringVar(&i.runtimeDir, "runtime-dir", "", "runtime directory of the instance (default from the name, or $"+envRuntimeDir+")")
}

// stateFlag adds the flag for the directory of keys.
func (i *instance) stateFlag(c *cobra.Command) {
	c.Flags().StringVar(&i.stateDir, "state-dir", "", "directory of keys (default from the name)")
}

var nameSyntax = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,63}$`)

// resolve fills in the directories that no flag names.
func (i *instance) resolve() error {
	if !nameSyntax.MatchString(i.name) {
		return usageError("--name: found %q, expected letters, digits, '.', '_' and '-'", i.name)
	}
	if i.runtimeDir == "" {
		i.runtimeDir = os.Getenv(envRuntimeDir)
	}
	var err error
	if i.runtimeDir == "" {
		if i.runtimeDir, err = defaultRuntimeDir(i.name); err != nil {
			return err
		}
	}
	if i.stateDir == "" {
		if i.stateDir, err = defaultStateDir(i.name); err != nil {
			return err
		}
	}
	for _, dir := range []*string{&i.runtimeDir, &i.stateDir} {
		if *dir, err = filepath.Abs(*dir); err != nil {
			return err
		}
	}
	if n := len(i.socket()); n > maxSocketPath {
		return usageError("runtime directory %s: the path of its admin socket has %d bytes, %d are possible", i.runtimeDir, n, maxSocketPath)
	}
	return nil
}

// socket is where the admin API is.
func (i *instance) socket() string { return filepath.Join(i.runtimeDir, "admin.sock") }

func defaultRuntimeDir(name string) (string, error) {
	if os.Getuid() == 0 {
		return filepath.Join("/run/holdfast", name), nil
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "holdfast", name), nil
	}
	// Without a login session there is no such directory. The one below is in
	// a place where anybody may have made it first.
	dir := filepath.Join(os.TempDir(), "holdfast-"+strconv.Itoa(os.Getuid()))
	if err := private(dir); err != nil {
		return "", err
	}
	return filepath.Join(dir, name), nil
}

// private reports what is wrong with a directory that is to be this user's
// alone; one that does not exist is fine.
func private(dir string) error {
	info, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok || st.Uid != uint32(os.Getuid()) || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("runtime directory %s belongs to somebody else: remove it, or name another one with --runtime-dir", dir)
	}
	return nil
}

func defaultStateDir(name string) (string, error) {
	if os.Getuid() == 0 {
		return filepath.Join("/var/lib/holdfast", name), nil
	}
	if dir := os.Getenv("XDG_STATE_HOME"); dir != "" {
		return filepath.Join(dir, "holdfast", name), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", usageError("no home directory to keep keys in: name one with --state-dir")
	}
	return filepath.Join(home, ".local/state/holdfast", name), nil
}
