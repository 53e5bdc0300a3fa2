package cli

import (
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/holdfast-quic/holdfast/config"
	"github.com/holdfast-quic/holdfast/supervisor"
)

// source is where run gets its configuration from, at the start and at each
// reload. Its methods are called by one goroutine at a time.
type source struct {
	path     string // empty = built-in
	people   bool   // the built-in logs are for people's eyes
	stateDir string
	log      *logger

	started *config.Config // what the instance was started with

	logs atomic.Pointer[config.Config] // whose log files are in use
}

// load reads the configuration as it is now. The first one that is read
// determines the log, and is what the instance was started with.
func (s *source) load() (c *config.Config, err error) {
	if s.path == "" {
		c = config.Builtin()
		if s.people {
			c.Log.Format, c.AccessLog.Format = "console", "console"
		}
	} else if c, err = config.Load(s.path); err != nil {
		return nil, err
	}
	if s.started == nil {
		s.started = c
	}
	return c, nil
}

// reopenLogs is supervisor.Options.ReopenLogs.
func (s *source) reopenLogs() error {
	if c := s.logs.Load(); c != nil {
		if err := prepareLogs(c); err != nil {
			return err
		}
	}
	return s.log.reopen()
}

// spec is supervisor.Options.Load.
func (s *source) spec() (*supervisor.Spec, error) {
	// Always anew: a supervisor that takes an instance over asks for the first
	// time at the first reload, long after it has begun.
	c, err := s.load()
	if err != nil {
		return nil, err
	}
	if err := config.CheckReload(s.started, c); err != nil {
		return nil, err
	}
	if s.log != nil {
		if err := s.log.setLevel(c.Log.Level); err != nil {
			return nil, err
		}
		if err := prepareLogs(c); err != nil {
			return nil, err
		}
		s.logs.Store(c)
		for _, w := range c.Warnings(time.Now()) {
			s.log.Warn(w.Text, zap.String("file", w.File))
		}
	}
	return spec(c, s.stateDir)
}
