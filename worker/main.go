package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
	"github.com/holdfast-quic/holdfast/shm"
)

// Exit codes of a worker process.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2 // not started by a supervisor
)

// Options says what a program is. The zero value is made up from the build
// information of the binary.
type Options struct {
	Version string
	BuildID string
}

// Main runs serve as a worker and exits the process: with 0 after a drain or
// stop, 1 when it failed (the supervisor knows the reason), 2 when it was not
// started by a supervisor. It is the whole of a program's main function.
//
// serve opens what it needs, calls Ready and returns when the worker is Idle
// or Stopping and its connections have been told. Its context ends when the
// time for stopping is over. A panic in it counts as a failure.
func Main(serve func(context.Context, *Worker) error) { os.Exit(Run(Options{}, serve)) }

// Run is Main for programs that have something to do after it: it returns the
// exit code. It may be called once in a process.
func Run(o Options, serve func(context.Context, *Worker) error) int {
	life, err := lifeline.Inherit()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v; it is a worker that `holdfast run` starts\n", filepath.Base(os.Args[0]), err)
		return exitUsage
	}
	defer life.Close()
	terminate := catchSignals()
	// The supervisor sizes the buffers of its sockets and says once if it
	// cannot; quic-go would say so again in every worker.
	os.Setenv("QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING", "true")
	w, err := join(life, o)
	if err != nil {
		report(life, err)
		fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(os.Args[0]), err)
		return exitFailed
	}
	return w.run(serve, terminate)
}

// report tells the supervisor why this process ends. It may be gone.
func report(life *lifeline.Conn, reason error) {
	_ = life.Send(&lifeline.Message{Kind: lifeline.KindFailed, Failed: &lifeline.Failed{Reason: reason.Error()}})
}

// catchSignals takes the signals that a terminal or an operator sends to the
// whole process group: the supervisor gets them too and decides. They are
// caught rather than ignored, so that children start with the defaults.
// SIGTERM is returned.
func catchSignals() <-chan os.Signal {
	ignored := make(chan os.Signal, 1)
	signal.Notify(ignored, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGPIPE, syscall.SIGINT, syscall.SIGQUIT)
	terminate := make(chan os.Signal, 1)
	signal.Notify(terminate, syscall.SIGTERM)
	return terminate
}

// join introduces the process and becomes the worker that the answer names.
func join(life *lifeline.Conn, o Options) (*Worker, error) {
	o.fill()
	if err := life.Send(&lifeline.Message{Kind: lifeline.KindHello, Hello: &lifeline.Hello{
		ProtocolMin: lifeline.ProtocolMin, ProtocolMax: lifeline.ProtocolMax,
		ABIMajor: shm.ABIMajor, ABIMinor: shm.ABIMinor,
		Version: o.Version, BuildID: o.BuildID, PID: os.Getpid(),
	}}); err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	m, files, err := life.Recv()
	if err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	switch m.Kind {
	case lifeline.KindRefuse:
		return nil, fmt.Errorf("join: %w: %s", ErrRefused, m.Refuse.Reason)
	case lifeline.KindWelcome:
	default:
		return nil, fmt.Errorf("join: %w: %s", ErrProtocol, m.Kind)
	}
	if n := m.Welcome.MaxProcs; n > 0 {
		runtime.GOMAXPROCS(n)
	}
	w, err := attach(life, o, m.Welcome, files)
	if err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	return w, nil
}

// fill takes what is not said from the binary itself.
func (o *Options) fill() {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return
	}
	if o.Version == "" {
		o.Version = info.Main.Version
	}
	if o.BuildID == "" {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				o.BuildID = s.Value
			}
		}
	}
}

// errPanic is how a panic of the program is reported.
var errPanic = errors.New("panic")

// run serves until the program returns or its time is over.
func (w *Worker) run(serve func(context.Context, *Worker) error, terminate <-chan os.Signal) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go w.follow()
	go w.housekeeping()
	go w.requestNonces()
	done := make(chan error, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				w.log.Error("panic", zap.Any("value", p), zap.ByteString("stack", debug.Stack()))
				done <- fmt.Errorf("%w: %v", errPanic, p)
			}
		}()
		done <- serve(ctx, w)
	}()
	err := w.await(done, terminate, cancel)
	code := w.verdict(err)
	w.registry.endAll()
	w.end()
	return code
}

const (
	// terminateGrace is the time for stopping when the process is told to end
	// by SIGTERM and not by its supervisor.
	terminateGrace = 5 * time.Second
	// lastWords is how long a program has to return once its context is over.
	lastWords = 500 * time.Millisecond
)

var errOverdue = errors.New("the program did not return in time")

// await returns what the program returned, or errOverdue when it has not by
// the time that was set for stopping.
func (w *Worker) await(done <-chan error, terminate <-chan os.Signal, cancel context.CancelFunc) error {
	var deadline <-chan time.Time
	for {
		select {
		case err := <-done:
			return err
		case <-terminate:
			w.orders.stop(terminateGrace)
		case <-w.orders.hurry:
			deadline = time.After(w.Grace())
		case <-deadline:
			w.registry.endAll()
			cancel()
			select {
			case err := <-done:
				return err
			case <-time.After(lastWords):
				return errOverdue
			}
		}
	}
}

// verdict tells the supervisor how it ended and returns the exit code.
func (w *Worker) verdict(err error) int {
	stopping := w.orders.deadline.Load() != nil
	if err == nil && !stopping && !w.orders.isDraining() {
		err = ErrReturned
	}
	if err != nil {
		w.log.Error("worker ends", zap.Error(err))
	}
	if err != nil && (!stopping || errors.Is(err, errPanic)) {
		report(w.tether.current(), err)
		return exitFailed
	}
	// Also after a stop that left something undone: it was to end.
	_ = w.tether.send(&lifeline.Message{Kind: lifeline.KindDrained})
	return exitDone
}
