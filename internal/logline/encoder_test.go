package logline

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

func line(t *testing.T, format string) string {
	t.Helper()
	e := zapcore.Entry{Level: zapcore.WarnLevel, Time: time.Unix(0, 0).UTC(), Message: "what happened"}
	b, err := Encoder(format).EncodeEntry(e, []zapcore.Field{zap.Duration("after", 90*time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestJSONIsOneObjectPerLine(t *testing.T) {
	var got map[string]any
	if err := json.Unmarshal([]byte(line(t, JSON)), &got); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"time": "1970-01-01T00:00:00Z", "level": "warn", "msg": "what happened", "after": "1m30s"} {
		if got[key] != want {
			t.Errorf("%s is %v, expected %s", key, got[key], want)
		}
	}
}

func TestConsoleIsForPeople(t *testing.T) {
	if got := line(t, Console); !strings.HasPrefix(got, "00:00:00.000\twarn\twhat happened") {
		t.Errorf("line %q", got)
	}
}

func TestFormsAreKnownByName(t *testing.T) {
	if !Known(JSON) || !Known(Console) || Known("xml") || Known("") {
		t.Error("another form is known")
	}
}
