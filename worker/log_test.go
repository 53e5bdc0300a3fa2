package worker

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// What was derived from the logger before the program has read its
// configuration follows it too.
func TestLogFormatCanBeSet(t *testing.T) {
	var out bytes.Buffer
	w := &Worker{logStyle: &logStyle{level: zap.NewAtomicLevel()}}
	w.log = zap.New(newLogCore(w.logStyle, zapcore.AddSync(&out)))
	derived := w.Logger().Named("part").With(zap.Int("slot", 3))

	derived.Info("first")
	var line struct {
		Logger, Msg string
		Slot        int
	}
	if err := json.Unmarshal(out.Bytes(), &line); err != nil || line.Logger != "part" || line.Msg != "first" || line.Slot != 3 {
		t.Errorf("%q, %v", out.String(), err)
	}
	out.Reset()
	if err := w.SetLogFormat("console"); err != nil {
		t.Fatal(err)
	}
	derived.Info("second")
	derived.Debug("below the level")
	if got := out.String(); strings.HasPrefix(got, "{") || !strings.HasSuffix(got, "\tinfo\tpart\tsecond\t{\"slot\": 3}\n") {
		t.Errorf("%q", got)
	}
	out.Reset()
	if err := w.SetLogFormat("xml"); err == nil || !strings.Contains(err.Error(), `"xml"`) {
		t.Errorf("an unknown form: %v", err)
	}
	if err := w.SetLogFormat("json"); err != nil {
		t.Fatal(err)
	}
	derived.Info("third")
	if !json.Valid(out.Bytes()) {
		t.Errorf("%q", out.String())
	}
}
