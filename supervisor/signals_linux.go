package supervisor

import (
	"os"
	"os/signal"
	"syscall"
)

// signalBacklog holds what arrives before the loop runs. Equal signals may
// merge: a reload that has not begun serves all that asked for one.
const signalBacklog = 64

// CatchSignals takes over the process's signals. It is to be the very first
// thing that a program with a supervisor does: a signal that comes before it
// ends the process, one that comes after waits for Run.
//
// Not taken are KILL and STOP, which can't be, URG, which the Go runtime uses
// itself, and those that report a fault of the program (SEGV, ABRT and the
// like), which end it with a trace. Whatever has no meaning for a supervisor
// is swallowed by a handler rather than ignored, because what is ignored stays
// ignored in the workers.
func CatchSignals() <-chan os.Signal {
	ch := make(chan os.Signal, signalBacklog)
	signal.Notify(ch,
		syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGINT)
	rest := make(chan os.Signal, 1) // a full channel drops: nobody waits for these
	signal.Notify(rest,
		syscall.SIGPIPE, syscall.SIGALRM, syscall.SIGVTALRM, syscall.SIGPROF, syscall.SIGIO, syscall.SIGPWR,
		syscall.SIGSTKFLT, syscall.SIGWINCH, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU,
		syscall.SIGXCPU, syscall.SIGXFSZ, syscall.SIGCONT)
	if os.Getpid() == 1 {
		signal.Notify(ch, syscall.SIGCHLD)
	}
	return ch
}
