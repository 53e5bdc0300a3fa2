package supervisor

import (
	"fmt"
	"syscall"
)

func (e exit) String() string {
	switch {
	case !e.known:
		return "ended, status unknown"
	case e.signal != 0:
		return fmt.Sprintf("killed by signal %d (%s)", int(e.signal), e.signal)
	}
	return fmt.Sprintf("exit status %d", e.status)
}

func exitOf(ws syscall.WaitStatus) exit {
	if ws.Signaled() {
		return exit{status: -1, signal: ws.Signal(), known: true}
	}
	return exit{status: ws.ExitStatus(), known: true}
}
