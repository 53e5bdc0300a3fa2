package config

import (
	"reflect"
	"strings"
	"testing"
)

// paths lists the keys that the types have, in the form of the key table.
func paths(t reflect.Type, path string) []string {
	var list []string
	for _, name := range fieldNames(t) {
		sub, f := join(path, name), t.Field(fieldsOf(t)[name]).Type
		list = append(list, sub)
		if f.Kind() == reflect.Slice && f.Elem().Kind() == reflect.Struct {
			f, sub = f.Elem(), sub+"[]"
		}
		if f.Kind() == reflect.Pointer {
			f = f.Elem()
		}
		if f.Kind() == reflect.Struct {
			list = append(list, paths(f, sub)...)
		}
	}
	return list
}

func TestEveryKeyIsDescribed(t *testing.T) {
	have := map[string]bool{}
	for _, p := range paths(reflect.TypeFor[Config](), "") {
		have[p] = true
		k, ok := keyIndex[p]
		if !ok {
			t.Errorf("%s has no row in the key table", p)
			continue
		}
		if !strings.HasSuffix(k.doc, ".") {
			t.Errorf("%s: the description is no sentence: %q", p, k.doc)
		}
	}
	if len(keyIndex) != len(keys) {
		t.Error("a key has two rows")
	}
	for _, k := range keys {
		if !have[k.path] {
			t.Errorf("%s is in no type", k.path)
			continue
		}
		typ := typeOf(k.path)
		if scalar := typ.Kind() == reflect.Int || typ.Kind() == reflect.Int64; scalar && (k.max == 0 || k.min >= k.max) {
			t.Errorf("%s has no limits", k.path)
		}
		if scalar := typ.Kind() == reflect.Int || typ.Kind() == reflect.Int64 || typ.Kind() == reflect.Bool; scalar && !k.required && k.def == "" && k.defNote == "" {
			t.Errorf("%s has no default", k.path)
		}
		if k.special == isPath && typ.Kind() == reflect.String && k.expected == "" {
			t.Errorf("%s does not say what is expected", k.path)
		}
	}
}

// TestDefaults holds the documented defaults, which scripts rely on, against
// what a file without any optional key gives.
func TestDefaults(t *testing.T) {
	c := mustParse(t, minimal)
	want := map[string]any{
		"drain.mode": "hold", "drain.timeout": 1 * hour, "drain.stop_timeout": 30 * sec, "drain.goaway_window": 10 * sec,
		"drain.max_generations": 16, "drain.overflow": "wait", "drain.follow": false,
		"reload.mode": "generation", "reload.min_interval": 0,
		"start.ready_timeout": 30 * sec, "start.probe": true, "start.probe_timeout": 10 * sec, "start.tries": 5,
		"table.entries": 1 << 20, "queue.lanes": 32, "queue.lane_size": 1 << 20,
		"sockets.receive_buffer": 7 << 20, "sockets.send_buffer": 7 << 20,
		"workers": 0, "steering": "auto", "strict": false, "limits.nofile": 0, "pid_file": "",
		"log.level": "info", "log.path": "stderr", "log.format": "json",
		"access_log.path": "stderr", "access_log.format": "json",
	}
	for path, w := range want {
		v := field(c, path)
		have := v.Interface()
		if v.CanInt() {
			have, w = v.Int(), reflect.ValueOf(w).Int()
		}
		if have != w {
			t.Errorf("%s is %v by default, want %v", path, have, w)
		}
	}
	l := &c.Listeners[0]
	if strings.Join(l.Protocols, " ") != "h3 h2 http/1.1" || l.AdvertisePort != 8443 || l.DrainTimeout != c.Drain.Timeout {
		t.Errorf("listener: %+v", l)
	}
	if q := l.QUIC; int64(q.IdleTimeout) != 30*sec || q.KeepAlive != 0 || q.MaxIncomingStreams != 100 || q.Retry != RetryOff || !q.Allow0RTT {
		t.Errorf("quic: %+v", q)
	}
	if c.WorkerCount() < 1 || c.CID.ServerID != nil {
		t.Errorf("workers %d, server ID %x", c.WorkerCount(), c.CID.ServerID)
	}
}

func TestNearest(t *testing.T) {
	known := []string{"mode", "timeout", "stop_timeout", "max_generations"}
	for word, want := range map[string]string{
		"timout": "timeout", "tiemout": "timeout", "Timeout": "timeout", "stop-timeout": "stop_timeout", "mod": "mode",
		"maxgenerations": "max_generations", "shade": "", "": "", "x": "", "mode": "mode", strings.Repeat("m", 5000): "",
	} {
		if got := nearest(word, known); got != want {
			t.Errorf("nearest(%.20q) = %q, want %q", word, got, want)
		}
	}
}
