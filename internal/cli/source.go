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

	loaded  *config.Config // read and not used yet
	started *config.Config // what the instance was started with

	logs atomic.Pointer[config.Config] // whose log files are in use
}

// load reads the configuration for a start whose log it determines; the first
// spec uses it too.
func (s *source) load() (*config.Config, error) {
	if s.path == "" {
		s.loaded = config.Builtin()
		if s.people {
			s.loaded.Log.Format, s.loaded.AccessLog.Format = "console", "console"
		}
		return s.loaded, nil
	}
	var err error
	s.loaded, err = config.Load(s.path)
	return s.loaded, err
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
	c := s.loaded
	s.loaded = nil
	if c == nil {
		var err error
		if c, err = s.load(); err != nil {
			return nil, err
		}
		s.loaded = nil
	}
	if s.started == nil {
		s.started = c
	} else if err := config.CheckReload(s.started, c); err != nil {
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
