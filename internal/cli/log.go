package cli

import (
	"fmt"
	"os"
	"sync"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/holdfast-quic/holdfast/config"
	"github.com/holdfast-quic/holdfast/internal/logline"
)

// logOptions say how a process logs.
type logOptions struct {
	Level  string
	Path   string // config.LogStderr or a file
	Format string
}

// logger is a zap.Logger whose level can change and whose file can be opened
// again.
type logger struct {
	*zap.Logger
	level zap.AtomicLevel
	sink  *logSink
}

func newLogger(o logOptions) (*logger, error) {
	l := &logger{level: zap.NewAtomicLevel(), sink: &logSink{path: o.Path, file: os.Stderr}}
	if err := l.setLevel(o.Level); err != nil {
		return nil, err
	}
	if err := l.sink.reopen(); err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	l.Logger = zap.New(zapcore.NewCore(logline.Encoder(o.Format), l.sink, l.level))
	return l, nil
}

func (l *logger) setLevel(level string) error {
	parsed, err := parseLevel(level)
	if err == nil {
		l.level.SetLevel(parsed)
	}
	return err
}

// parseLevel reads the name of a log level; none is info.
func parseLevel(level string) (zapcore.Level, error) {
	if level == "" {
		return zapcore.InfoLevel, nil
	}
	return zapcore.ParseLevel(level)
}

func (l *logger) reopen() error { return l.sink.reopen() }

// logSink writes to standard error or to a file that can be opened again
// under its name after it was moved away. One write per line, at the end of
// the file, so several processes can share it.
type logSink struct {
	path string

	mu   sync.Mutex
	file *os.File
}

// Write implements [zapcore.WriteSyncer].
func (s *logSink) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.file.Write(p)
}

// Sync implements [zapcore.WriteSyncer]; lines are written unbuffered.
func (s *logSink) Sync() error { return nil }

// reopen opens the file of that name; when that fails, the one before stays
// in use.
func (s *logSink) reopen() error {
	if s.path == "" || s.path == config.LogStderr {
		return nil
	}
	file, err := os.OpenFile(s.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, logMode)
	if err != nil {
		return err
	}
	s.mu.Lock()
	old := s.file
	s.file = file
	s.mu.Unlock()
	if old != os.Stderr {
		return old.Close()
	}
	return nil
}
