package logline

import (
	"go.uber.org/zap/zapcore"
)

// Forms of a line.
const (
	JSON    = "json"    // one object, for programs
	Console = "console" // columns, for people
)

// Known reports whether there is a form of that name.
func Known(format string) bool { return format == JSON || format == Console }

// Encoder returns an encoder of that form; of an unknown one it is JSON.
func Encoder(format string) zapcore.Encoder {
	c := zapcore.EncoderConfig{
		TimeKey: "time", LevelKey: "level", NameKey: "logger", MessageKey: "msg", StacktraceKey: "stack",
		EncodeTime: zapcore.RFC3339NanoTimeEncoder, EncodeLevel: zapcore.LowercaseLevelEncoder,
		EncodeDuration: zapcore.StringDurationEncoder,
	}
	if format == Console {
		c.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05.000")
		return zapcore.NewConsoleEncoder(c)
	}
	return zapcore.NewJSONEncoder(c)
}
