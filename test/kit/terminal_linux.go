package kit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"

	"golang.org/x/sys/unix"
)

// CLITerminal is CLI with standard error on a terminal; Stderr is what the
// terminal was sent.
func (i *Instance) CLITerminal(args ...string) Result {
	i.t.Helper()
	master, terminal, err := openTerminal()
	if err != nil {
		i.t.Skipf("no terminal is to be had here: %v", err)
	}
	defer master.Close()
	cmd := i.command(args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, terminal
	err = cmd.Start()
	terminal.Close()
	if err != nil {
		i.t.Fatal(err)
	}
	var screen bytes.Buffer
	var reading sync.WaitGroup
	reading.Go(func() { io.Copy(&screen, master) }) // ends with EIO when the command has ended
	err = cmd.Wait()
	reading.Wait()
	code := 0
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		code = e.ExitCode()
	} else if err != nil {
		i.t.Fatal(err)
	}
	return Result{Code: code, Stdout: out.String(), Stderr: screen.String()}
}

// openTerminal makes a pseudo-terminal.
func openTerminal() (master, terminal *os.File, err error) {
	master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		return nil, nil, errors.Join(err, master.Close())
	}
	return master, terminal, nil
}
