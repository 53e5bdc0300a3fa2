package supervisor

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/holdfast-quic/holdfast/internal/notify"
)

const (
	// statusInterval is how often the service manager's status line is looked
	// at; it is sent when it has changed.
	statusInterval = 5 * time.Second
	// extendInterval is how often a manager that waits for a start, a reload
	// or a stop is asked for more patience, and extension for how much. While
	// the loop runs, the supervisor's own limits end what takes too long.
	extendInterval = 10 * time.Second
	extension      = 30 * time.Second
	// flushTimeout is how long the last words to the manager may take.
	flushTimeout = time.Second
)

// notifier is what the service manager knows. It belongs to the loop.
type notifier struct {
	out     *notify.Sender // nil when there is no manager
	env     notify.Environment
	told    bool   // that the first generation is current
	reloads bool   // a reload has been announced and its end has not
	status  string // as last sent
}

// openNotify finds out whether there is a service manager.
func (s *Supervisor) openNotify() {
	env, err := s.env.manager()
	if err != nil {
		s.log.Warn("service manager", zap.Error(err))
	}
	s.notify.env = env
	if env.Socket == "" {
		return
	}
	s.notify.out = notify.NewSender(env.Socket, func(err error) {
		s.log.Warn("service manager", zap.Error(err))
	})
}

// startNotify arms what the manager is told from time to time. All of it
// comes from the loop: when that hangs, the manager notices.
func (s *Supervisor) startNotify() {
	if s.notify.out == nil {
		return
	}
	s.extendTimeout()
	s.refreshStatus()
	if s.notify.env.Watchdog > 0 {
		s.log.Info("the service manager watches", zap.Duration("watchdog", s.notify.env.Watchdog))
		s.beat()
	}
}

// beat shows the manager that the loop runs, twice as often as it asks for.
func (s *Supervisor) beat() {
	if !s.notify.out.Behind() {
		s.notify.out.Send(notify.Watchdog)
	}
	s.after(s.notify.env.Watchdog/2, s.beat)
}

func (s *Supervisor) refreshStatus() {
	s.sendStatus()
	s.after(statusInterval, s.refreshStatus)
}

// sendStatus sends the status line if it differs from what the manager has.
func (s *Supervisor) sendStatus() {
	if line := s.statusLine(); line != s.notify.status {
		s.notify.status = line
		s.notify.out.Send(notify.Status(line))
	}
}

// extendTimeout asks a manager that waits to go on waiting.
func (s *Supervisor) extendTimeout() {
	if s.current == nil || s.stopping != stopNone || s.notify.reloads {
		s.notify.out.Send(notify.ExtendTimeout(extension))
	}
	s.after(extendInterval, s.extendTimeout)
}

// notifyReloading announces a reload. It is said for each request, also for
// one that is merged into another: a manager that has just sent the signal
// takes only a later time for the answer to it.
func (s *Supervisor) notifyReloading() {
	if s.notify.out == nil || !s.notify.told {
		return
	}
	s.notify.reloads = true
	s.notify.status = s.statusLine()
	s.notify.out.Send(notify.Reloading(s.env.monotonic()), notify.Status(s.notify.status), notify.ExtendTimeout(extension))
}

// notifySettled says that the service is ready: the first generation has
// become current, or no reload is left to be done, whatever came of it.
func (s *Supervisor) notifySettled() {
	if s.current == nil || s.stopping != stopNone {
		return
	}
	s.settlePassed()
	s.syncStore()
	if s.notify.out == nil || s.notify.told && s.reloadsLeft() {
		return // the next reload answers for this one too
	}
	first := !s.notify.told
	if !first && !s.notify.reloads {
		s.sendStatus()
		return
	}
	s.notify.told, s.notify.reloads = true, false
	s.notify.status = s.statusLine()
	lines := []string{notify.Ready, notify.Status(s.notify.status)}
	if s.notify.env.Wrapped {
		lines = append(lines, notify.MainPID(s.env.getpid()))
	}
	s.notify.out.Send(lines...)
	if first && s.reloadsLeft() {
		s.notifyReloading() // it was asked for before the manager could be told
	}
}

// reloadsLeft reports whether a reload is under way or has been asked for.
func (s *Supervisor) reloadsLeft() bool {
	isReload := func(o *operation) bool { return o.Kind == OperationReload }
	return s.op != nil && isReload(s.op) || slices.ContainsFunc(s.queue, isReload)
}

// notifyStopping says that the service ends.
func (s *Supervisor) notifyStopping() {
	if s.notify.out == nil {
		return
	}
	s.notify.status = s.statusLine()
	s.notify.out.Send(notify.Stopping, notify.Status(s.notify.status), notify.ExtendTimeout(extension))
}

// closeNotify says why the service ends, if there is a reason.
func (s *Supervisor) closeNotify(err error) {
	if s.notify.out == nil {
		return
	}
	if err != nil {
		lines := []string{notify.Status("failed: " + oneLine(err))}
		if errno, ok := errors.AsType[syscall.Errno](err); ok {
			lines = append(lines, notify.Errno(int(errno)))
		}
		s.notify.out.Send(lines...)
	}
	s.notify.out.Flush(flushTimeout)
}

// statusLine describes the moment to people who read the manager's status.
func (s *Supervisor) statusLine() string {
	var b strings.Builder
	switch {
	case s.stopping == stopFast:
		b.WriteString("stopping at once")
	case s.stopping == stopGraceful:
		b.WriteString("stopping: connections are asked to leave")
	case s.current == nil:
		b.WriteString("starting")
	default:
		missing := 0
		for _, m := range s.current.members {
			if m.w == nil || m.w.state != workerServing {
				missing++
			}
		}
		_, conns := s.loadOf(s.current)
		fmt.Fprintf(&b, "generation %d: %s, %s", s.current.id,
			count(len(s.current.members)-missing, "worker"), count(conns, "connection"))
		if missing > 0 {
			fmt.Fprintf(&b, "; %s missing", count(missing, "worker"))
		}
	}
	generations, workers, conns := 0, 0, 0
	for _, g := range s.draining() {
		w, c := s.loadOf(g)
		generations, workers, conns = generations+1, workers+w, conns+c
	}
	if generations > 0 {
		fmt.Fprintf(&b, "; draining: %s, %s, %s", count(generations, "generation"), count(workers, "worker"), count(conns, "connection"))
	}
	if s.notify.reloads {
		b.WriteString("; reloading")
	}
	if f := s.lastFailure; f != nil {
		fmt.Fprintf(&b, "; last failure at %s: %s: %s", f.When.UTC().Format(time.TimeOnly), f.What, f.Reason)
	}
	return b.String()
}

// loadOf counts the live workers of g and their connections.
func (s *Supervisor) loadOf(g *generation) (workers, conns int) {
	for w := range s.workers {
		if w.gen == g {
			r := s.seg.Directory().Record(w.slot)
			workers, conns = workers+1, conns+int(r.QUICConns+r.TCPConns)
		}
	}
	return workers, conns
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
