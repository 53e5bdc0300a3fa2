package worker

import (
	"fmt"
	"os"
	"sync/atomic"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
	"github.com/holdfast-quic/holdfast/internal/logline"
)

// logStyle is what can change of a log whose loggers are in use: the program
// learns what the configuration wants after the first of them was made.
type logStyle struct {
	level   zap.AtomicLevel
	console atomic.Bool
}

// logCore is a zapcore.Core that writes in the form that its style has at that
// moment.
type logCore struct {
	style         *logStyle
	json, console zapcore.Core
}

func newLogCore(style *logStyle, out zapcore.WriteSyncer) *logCore {
	core := func(format string) zapcore.Core {
		return zapcore.NewCore(logline.Encoder(format), out, style.level)
	}
	return &logCore{style, core(logline.JSON), core(logline.Console)}
}

// Enabled implements [zapcore.LevelEnabler].
func (c *logCore) Enabled(level zapcore.Level) bool { return c.style.level.Enabled(level) }

// With implements [zapcore.Core].
func (c *logCore) With(fields []zapcore.Field) zapcore.Core {
	return &logCore{c.style, c.json.With(fields), c.console.With(fields)}
}

// Check implements [zapcore.Core].
func (c *logCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if !c.Enabled(e.Level) {
		return ce
	}
	return ce.AddCore(e, c)
}

// Write implements [zapcore.Core].
func (c *logCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	if c.style.console.Load() {
		return c.console.Write(e, fields)
	}
	return c.json.Write(e, fields)
}

// Sync implements [zapcore.Core]; lines are written unbuffered.
func (c *logCore) Sync() error { return nil }

func newLogger(welcome *lifeline.Welcome, style *logStyle) *zap.Logger {
	return zap.New(newLogCore(style, zapcore.Lock(os.Stderr))).With(
		zap.Uint32("generation", welcome.Generation),
		zap.Uint16("slot", welcome.Slot),
		zap.Uint32("incarnation", welcome.Incarnation),
	)
}

// Logger returns a logger that writes lines to standard error and names the
// worker in each.
func (w *Worker) Logger() *zap.Logger { return w.log }

// SetLogLevel sets the least level that Logger, and what was derived from it,
// writes. It begins with info. Safe for concurrent use.
func (w *Worker) SetLogLevel(level zapcore.Level) { w.logStyle.level.SetLevel(level) }

// SetLogFormat sets the form of the lines that Logger, and what was derived
// from it, writes: "json", which it begins with, or "console", for people. The
// error is about any other. Safe for concurrent use.
func (w *Worker) SetLogFormat(format string) error {
	if !logline.Known(format) {
		return fmt.Errorf("log format: found %q, expected %q or %q", format, logline.JSON, logline.Console)
	}
	w.logStyle.console.Store(format == logline.Console)
	return nil
}
