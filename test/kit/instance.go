package kit

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Options say how an instance is started.
type Options struct {
	Config      Config
	Raw         string     // the whole configuration instead of Config
	Env         []string   // further environment
	Files       []*os.File // the supervisor's descriptors from 3 on
	Dir         string     // instead of a temporary one; state in it survives the instance
	Namespace   *Namespace
	Args        []string // further arguments of run
	Program     string   // the supervisor's program as it is typed, instead of the test's own
	WorkDir     string   // directory that the supervisor is started in
	Prefix      []string // command line put before the supervisor's own, for example prlimit
	SharedPort  bool     // another instance holds the port when this one ends
	OwnGroup    bool     // run it in a process group of its own
	Corrupted   bool     // the scenario spoils the segment: neither it nor the counters are checked
	AllowLeaks  bool     // the scenario kills the supervisor and answers for what is left
	AllowPanics bool     // the scenario makes the product fail
}

// Instance is a running supervisor with its workers.
type Instance struct {
	Name       string
	Dir        string // all of the instance's files lie below it
	RuntimeDir string
	StateDir   string
	ConfigPath string
	FilesDir   string // what /files/ serves
	LogPath    string // standard output and error of supervisor and workers
	Config     Config // as it was started; WriteConfig does not change it

	t       testing.TB
	options Options
	mark    string // in the environment of each process
	cmd     *exec.Cmd
	exited  chan struct{}
	exitErr error
	fds     int // of the test process, before the start
	stopped bool
	failed  bool // a check has failed already
}

// StartTimeout bounds the time until the first generation is current.
const StartTimeout = 20 * time.Second

// Start runs an instance until the test ends.
func Start(t testing.TB, o Options) *Instance {
	t.Helper()
	i := Prepare(t, o)
	i.Launch()
	i.AwaitReady()
	return i
}

// Launch starts the supervisor's process and returns at once. The instance
// ends with the test.
func (i *Instance) Launch() {
	i.t.Helper()
	if err := i.launch(); err != nil {
		i.t.Fatalf("start supervisor: %v", err)
	}
	i.t.Cleanup(i.Close)
}

// Prepare lays out the files of an instance that Launch can start.
func Prepare(t testing.TB, o Options) *Instance {
	t.Helper()
	i := &Instance{
		t: t, options: o, Config: o.Config, Dir: o.Dir,
		mark: fmt.Sprintf("%d-%x", os.Getpid(), rand.Uint64()), fds: Descriptors(os.Getpid()),
	}
	if i.Dir == "" {
		// Not t.TempDir: its long path would not fit into a socket address.
		dir, err := os.MkdirTemp("", "hf")
		if err != nil {
			t.Fatal(err)
		}
		i.Dir = dir
		t.Cleanup(func() { os.RemoveAll(dir) })
	}
	i.Name = "t" + strconv.Itoa(os.Getpid())
	i.RuntimeDir, i.StateDir = filepath.Join(i.Dir, "run"), filepath.Join(i.Dir, "state")
	i.ConfigPath, i.FilesDir = filepath.Join(i.Dir, "holdfast.yaml"), filepath.Join(i.Dir, "files")
	i.LogPath = filepath.Join(i.Dir, "log")
	if err := os.MkdirAll(i.FilesDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if i.Config.Listeners == nil {
		port := FreePort(t, "127.0.0.1")
		i.Config.Listeners = []Listener{{Name: "public", Address: fmt.Sprintf("127.0.0.1:%d", port)}}
	}
	if i.Config.Workers == 0 {
		i.Config.Workers = 2
	}
	if i.Config.Body == "" {
		i.Config.Body = "v1"
	}
	if o.Raw != "" {
		i.WriteRaw(o.Raw)
	} else {
		i.WriteConfig(i.Config)
	}
	return i
}

// launch starts the supervisor's process.
func (i *Instance) launch() error {
	log, err := os.OpenFile(i.LogPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := i.command("run", "--config", i.ConfigPath, "--name", i.Name, "--state-dir", i.StateDir)
	if n := slices.Index(cmd.Args, "run") - 1; i.options.Program != "" && n > 0 {
		cmd.Args[n] = i.options.Program // the command line before it runs it
	} else if i.options.Program != "" {
		cmd.Path, cmd.Args[0] = i.options.Program, i.options.Program
		if !strings.Contains(cmd.Path, "/") {
			var err error
			if cmd.Path, err = exec.LookPath(cmd.Path); err != nil {
				return err
			}
		}
	}
	cmd.Dir = i.options.WorkDir
	cmd.Args = append(cmd.Args, i.options.Args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = i.options.Files
	i.exited = make(chan struct{})
	i.cmd, i.stopped = cmd, false
	if err := startBound(cmd, i.options.OwnGroup); err != nil {
		return err
	}
	exited := i.exited
	go func() {
		i.exitErr = cmd.Wait()
		close(exited)
	}()
	return nil
}

// command is the product's command line for this instance.
func (i *Instance) command(args ...string) *exec.Cmd { return i.Command(i.options.Prefix, args...) }

// Command is a command of the product for this instance, with a command line
// put before it that may be empty; the caller runs it.
func (i *Instance) Command(prefix []string, args ...string) *exec.Cmd {
	self, err := os.Executable()
	if err != nil {
		i.t.Fatal(err)
	}
	line := append(append(append([]string(nil), prefix...), self), args...)
	if i.options.Namespace != nil {
		line = append(i.options.Namespace.prefix(), line...)
	}
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = append(os.Environ(),
		envRole+"="+RoleHoldfast, envInstance+"="+i.mark, envWorker+"="+filepath.Join(i.Dir, "misbehave"),
		"HOLDFAST_RUNTIME_DIR="+i.RuntimeDir)
	cmd.Env = append(cmd.Env, i.options.Env...)
	return cmd
}

// startThread runs functions on one thread that never ends. A child that is
// to die with its parent gets its signal when the thread that started it
// ends, and other threads of a Go program may end at any time.
var startThread = sync.OnceValue(func() chan<- func() {
	starts := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range starts {
			f()
		}
	}()
	return starts
})

// startBound starts a command whose process is killed when this one ends.
func startBound(cmd *exec.Cmd, ownGroup bool) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: ownGroup}
	result := make(chan error)
	startThread() <- func() { result <- cmd.Start() }
	return <-result
}

// AwaitReady returns when a generation is current.
func (i *Instance) AwaitReady() {
	i.t.Helper()
	Eventually(i.t, StartTimeout, "first generation current", func() error {
		select {
		case <-i.exited:
			i.t.Fatalf("supervisor ended: %v\n%s", i.exitErr, i.LogTail(40))
		default:
		}
		s, err := i.TryStatus()
		if err != nil {
			return err
		}
		if _, ok := s.Current(); !ok {
			return errors.New("no generation is current")
		}
		return nil
	})
}

// Addr is the address of the first listener.
func (i *Instance) Addr() string { return i.Config.Listeners[0].Address }

// Port is the port of the first listener.
func (i *Instance) Port() int {
	_, port, _ := net.SplitHostPort(i.Addr())
	n, _ := strconv.Atoi(port)
	return n
}

// PID is the supervisor's process.
func (i *Instance) PID() int { return i.cmd.Process.Pid }

// Client returns options of a client of the first listener.
func (i *Instance) Client() ClientOptions { return ClientOptions{Server: i.Addr()} }

// WriteConfig replaces the configuration file; nothing is reloaded.
func (i *Instance) WriteConfig(c Config) {
	i.t.Helper()
	i.WriteRaw(c.YAML(i.FilesDir))
}

// WriteRaw replaces the configuration file by any text.
func (i *Instance) WriteRaw(yaml string) {
	i.t.Helper()
	if err := writeFile(i.ConfigPath, yaml); err != nil {
		i.t.Fatal(err)
	}
}

// WriteFile puts a file of random content below /files/ and returns its
// SHA-256 sum.
func (i *Instance) WriteFile(name string, size int64) string {
	i.t.Helper()
	f, err := os.Create(filepath.Join(i.FilesDir, name))
	if err != nil {
		i.t.Fatal(err)
	}
	h := sha256.New()
	source := rand.NewChaCha8([32]byte{1})
	if _, err = io.CopyN(io.MultiWriter(f, h), source, size); err == nil {
		err = f.Close()
	}
	if err != nil {
		i.t.Fatal(err)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Misbehave makes workers that start from now on misbehave in the given way;
// "" ends it. With first > 0 only that many of them do.
func (i *Instance) Misbehave(how string, first int) {
	i.t.Helper()
	for n := range 64 {
		os.Remove(filepath.Join(i.Dir, fmt.Sprintf("misbehave.turn%d", n)))
	}
	if first > 0 {
		how += " x" + strconv.Itoa(first)
	}
	if err := writeFile(filepath.Join(i.Dir, "misbehave"), how); err != nil {
		i.t.Fatal(err)
	}
}

// Signal sends a signal to the supervisor.
func (i *Instance) Signal(sig os.Signal) {
	i.t.Helper()
	if err := i.cmd.Process.Signal(sig); err != nil {
		i.t.Errorf("signal %v: %v", sig, err)
	}
}

// HUP asks for a reload by signal.
func (i *Instance) HUP() { i.Signal(syscall.SIGHUP) }

// AwaitGeneration returns when a generation of at least that number is
// current.
func (i *Instance) AwaitGeneration(id uint32) Status {
	i.t.Helper()
	var s Status
	Eventually(i.t, 20*time.Second, fmt.Sprintf("generation %d current", id), func() error {
		var err error
		if s, err = i.TryStatus(); err != nil {
			return err
		}
		if g, ok := s.Current(); !ok || g.ID < id {
			return fmt.Errorf("generation %d is current", g.ID)
		}
		return nil
	})
	return s
}

// Current is the number of the current generation.
func (i *Instance) Current() uint32 {
	i.t.Helper()
	g, ok := i.Status().Current()
	if !ok {
		i.t.Error("no generation is current")
	}
	return g.ID
}

// AwaitStatus returns when ok of the status returns nil.
func (i *Instance) AwaitStatus(within time.Duration, what string, ok func(Status) error) Status {
	i.t.Helper()
	var s Status
	Eventually(i.t, within, what, func() error {
		var err error
		if s, err = i.TryStatus(); err != nil {
			return err
		}
		return ok(s)
	})
	return s
}
