package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// accessLog writes one line per request. Several processes may share the
// file: each line is one write at its end. Safe for concurrent use.
type accessLog struct {
	core zapcore.Core
	file *logFile
}

// openAccessLog opens the log; nil without an error means that there is none.
func openAccessLog(o AccessLog, generation uint32) (*accessLog, error) {
	if o.Path == "" || o.Path == LogOff {
		return nil, nil
	}
	f := &logFile{path: o.Path}
	if err := f.Reopen(); err != nil {
		return nil, fmt.Errorf("open access log: %w", err)
	}
	enc := zapcore.EncoderConfig{
		TimeKey:        "time",
		EncodeTime:     zapcore.RFC3339NanoTimeEncoder,
		EncodeDuration: zapcore.SecondsDurationEncoder,
	}
	encoder := zapcore.NewJSONEncoder(enc)
	if o.Format == "console" {
		encoder = zapcore.NewConsoleEncoder(enc)
	}
	core := zapcore.NewCore(encoder, f, zapcore.InfoLevel)
	return &accessLog{core: core.With([]zapcore.Field{zap.Uint32("generation", generation)}), file: f}, nil
}

func (l *accessLog) write(listener string, r *http.Request, rec *recorder) {
	fields := [...]zapcore.Field{
		zap.String("listener", listener),
		zap.String("remote", remoteAddr(r)),
		zap.String("protocol", alpn(r)),
		zap.String("method", r.Method),
		zap.String("host", r.Host),
		zap.String("uri", r.URL.RequestURI()),
		zap.Int("status", rec.statusCode()),
		zap.Int64("bytes", rec.bytes),
		zap.Duration("seconds", time.Since(rec.start)),
		zap.String("user_agent", r.UserAgent()),
	}
	_ = l.core.Write(zapcore.Entry{Time: rec.start}, fields[:]) // a full disk must not fail requests
}

func (l *accessLog) reopen() error { return l.file.Reopen() }

func (l *accessLog) close() error { return l.file.Close() }

// logFile is a file that can be opened again under its name while it is
// written to, after it was moved away.
type logFile struct {
	path string

	mu   sync.Mutex
	file *os.File
}

// Write appends p.
func (f *logFile) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		return 0, os.ErrClosed
	}
	return f.file.Write(p)
}

// Sync is part of [zapcore.WriteSyncer]; the lines are written unbuffered.
func (f *logFile) Sync() error { return nil }

// Reopen opens the file of that name and closes the one before. When that
// fails, the one before stays in use.
func (f *logFile) Reopen() error {
	if f.path == LogStderr {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.file = os.Stderr
		return nil
	}
	file, err := os.OpenFile(f.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640)
	if err != nil {
		return err
	}
	f.mu.Lock()
	old := f.file
	f.file = file
	f.mu.Unlock()
	if old != nil {
		return old.Close()
	}
	return nil
}

// Close closes the file.
func (f *logFile) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	file := f.file
	f.file = nil
	if file == nil || file == os.Stderr {
		return nil
	}
	return file.Close()
}

// recorder remembers what was answered.
type recorder struct {
	http.ResponseWriter
	start    time.Time
	status   int
	bytes    int64
	panicked bool // the handler did, and the response is broken
}

// WriteHeader implements [http.ResponseWriter].
func (r *recorder) WriteHeader(status int) {
	if r.status == 0 && status >= 200 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

// Write implements [http.ResponseWriter].
func (r *recorder) Write(p []byte) (int, error) {
	n, err := r.ResponseWriter.Write(p)
	r.bytes += int64(n)
	return n, err
}

// Flush implements [http.Flusher].
func (r *recorder) Flush() {
	if err := http.NewResponseController(r.ResponseWriter).Flush(); errors.Is(err, http.ErrNotSupported) {
		return // what cannot be flushed is not buffered here either
	}
}

// Unwrap lets [http.ResponseController] reach what is underneath.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *recorder) statusCode() int {
	if r.status == 0 {
		return http.StatusOK
	}
	return r.status
}
