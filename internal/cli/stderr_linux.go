package cli

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// redirectStderr lets standard error go to the end of a file from now on.
func redirectStderr(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, logMode)
	if err == nil {
		err = unix.Dup3(int(f.Fd()), int(os.Stderr.Fd()), 0)
		f.Close()
	}
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	return nil
}
