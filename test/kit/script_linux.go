package kit

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// Script is a shell script of the product that runs.
type Script struct {
	t      testing.TB
	name   string
	cmd    *exec.Cmd
	err    *os.File
	master *os.File // of its terminal, if it has one
	result chan error
}

// shell is the strictest POSIX shell that there is.
func shell() string {
	if path, err := exec.LookPath("dash"); err == nil {
		return path
	}
	return "/bin/sh"
}

// StartScript starts a script for this instance, whose program it finds by the
// runtime directory as people would.
func (i *Instance) StartScript(path string, args ...string) *Script {
	i.t.Helper()
	return startScript(i.t, nil, path, append(args, "--runtime-dir", i.RuntimeDir)...)
}

// StartScriptOnTerminal is StartScript in a session of its own, on a terminal
// that HangUp takes away.
func (i *Instance) StartScriptOnTerminal(path string, args ...string) *Script {
	i.t.Helper()
	master, terminal, err := openTerminal()
	if err != nil {
		i.t.Skipf("no terminal is to be had here: %v", err)
	}
	defer terminal.Close()
	s := startScript(i.t, terminal, path, append(args, "--runtime-dir", i.RuntimeDir)...)
	s.master = master
	return s
}

// Script runs a script for this instance and returns how it has ended.
func (i *Instance) Script(path string, args ...string) Result {
	i.t.Helper()
	return i.StartScript(path, args...).Wait()
}

// RunScript runs a script that is about no instance.
func RunScript(t testing.TB, path string, args ...string) Result {
	t.Helper()
	return startScript(t, nil, path, args...).Wait()
}

func startScript(t testing.TB, terminal *os.File, path string, args ...string) *Script {
	t.Helper()
	// A file rather than a pipe: what a killed script has left running would
	// keep that open.
	stderr, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	s := &Script{t: t, name: filepath.Base(path), err: stderr, result: make(chan error, 1)}
	s.cmd = exec.Command(shell(), append([]string{path}, args...)...)
	s.cmd.Stdout, s.cmd.Stderr = stderr, stderr
	if terminal != nil {
		s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = terminal, terminal, terminal
		s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { s.result <- s.cmd.Wait() }()
	return s
}

// Signal sends a signal to the script alone, not to what it has started.
func (s *Script) Signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Errorf("%s: signal %v: %v", s.name, sig, err)
	}
}

// HangUp takes the terminal away: the kernel sends SIGHUP, and nothing can be
// written any more.
func (s *Script) HangUp() { s.master.Close() }

// scriptTimeout bounds a script.
const scriptTimeout = 2 * time.Minute

// Wait returns how the script has ended; code -1 is a signal.
func (s *Script) Wait() Result {
	s.t.Helper()
	defer s.err.Close()
	select {
	case err := <-s.result:
		if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
			s.t.Fatal(err)
		}
	case <-time.After(scriptTimeout):
		_ = s.cmd.Process.Kill()
		s.t.Errorf("%s has not ended within %v", s.name, scriptTimeout)
		<-s.result
	}
	if s.master != nil {
		s.master.Close()
	}
	said, err := os.ReadFile(s.err.Name())
	if err != nil && !errors.Is(err, io.EOF) {
		s.t.Fatal(err)
	}
	return Result{Code: s.cmd.ProcessState.ExitCode(), Stderr: string(said)}
}
