package cli

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// fakeSupervisor answers the admin API from handlers of a test.
type fakeSupervisor struct {
	dir    string
	mux    *http.ServeMux
	server *httptest.Server

	mu   sync.Mutex
	seen []string // "METHOD PATH BODY"
}

func fakeAdmin(t *testing.T) *fakeSupervisor {
	t.Helper()
	f := &fakeSupervisor{dir: shortDir(t), mux: http.NewServeMux()}
	l, err := net.Listen("unix", filepath.Join(f.dir, "admin.sock"))
	if err != nil {
		t.Fatal(err)
	}
	f.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		f.mu.Lock()
		f.seen = append(f.seen, strings.TrimSpace(r.Method+" "+r.URL.RequestURI()+" "+string(body)))
		f.mu.Unlock()
		f.mux.ServeHTTP(w, r)
	}))
	f.server.Listener.Close()
	f.server.Listener = l
	f.server.Start()
	t.Cleanup(f.server.Close)
	return f
}

func (f *fakeSupervisor) handle(pattern string, h http.HandlerFunc) { f.mux.HandleFunc(pattern, h) }

// answer lets a request get a JSON text.
func (f *fakeSupervisor) answer(pattern, text string) {
	f.handle(pattern, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) })
}

func (f *fakeSupervisor) requests() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.seen, "\n")
}

const fakeStatus = `{"name":"edge","version":"9.9","pid":77,"started":"2026-01-01T00:00:00Z","future":{"x":1},
"config":{"path":"/etc/h.yaml","hash":"sha256:abcdef0123456789"},"steering":{"mode":"auto","tier":"queue","reason":"no BPF"},
"listeners":[{"name":"public","udp":["127.0.0.1:8443"],"tcp":["127.0.0.1:8443"],"sockets":[
{"index":0,"address":"127.0.0.1:8443","receive_buffer":65536,"kernel_drops":0},{"index":1,"address":"127.0.0.1:8443","receive_buffer":65536,"kernel_drops":9}]}],
"generations":[{"id":8,"state":"current","since":"2026-01-01T00:00:00Z","deadline":null,
"workers":[{"slot":2,"incarnation":43,"pid":4720,"phase":"serving","restarts":1,"connections":{"quic":12,"tcp":3}},
{"slot":3,"incarnation":44,"pid":4721,"phase":"starting","hung":true}]},
{"id":7,"state":"draining","since":"2026-01-01T00:00:00Z","deadline":"2999-01-01T00:00:00Z","listener_deadlines":{"short":"2026-01-01T00:00:00Z"},"workers":[]}],
"table":{"capacity":1048576,"used":24,"handshaking":2},
"counters":{"packets_received":10,"packets_forwarded":4,"packets_dropped":{"loop":0,"queue_full":5},"send_errors":6,"reloads_ok":7},
"last_failure":{"when":"2026-01-01T00:00:00Z","what":"reload","reason":"h.yaml:3:1: nonsense"}}`

func TestStatusForPeopleIsOneGlance(t *testing.T) {
	f := fakeAdmin(t)
	f.answer("GET /v1/status", fakeStatus)
	code, b := call(t, "status", "--runtime-dir", f.dir)
	if code != exitDone {
		t.Fatalf("exit code %d: %s", code, b.err.String())
	}
	for _, part := range []string{"edge", "8", "current", "draining", "4720", "serving", "queue_full 5", "24 of 1048576", "no BPF", "h.yaml:3:1: nonsense", "7 done", "hung", "listener short ends in 0s", "unsent   6", "socket 1 on 127.0.0.1:8443 has lost 9 packets: its buffer of 64 KiB was full"} {
		if !strings.Contains(b.out.String(), part) {
			t.Errorf("%q is not in\n%s", part, b.out.String())
		}
	}
	if strings.Contains(b.out.String(), "loop") {
		t.Error("a counter that is zero is shown")
	}
	if strings.Contains(b.out.String(), "starting") {
		t.Error("a worker that hangs is shown in a phase")
	}
}

// A program that has its configuration inside names no file, and an older
// supervisor no hash.
func TestWhatHasNoNameIsADash(t *testing.T) {
	f := fakeAdmin(t)
	f.answer("GET /v1/status", `{"name":"own","generations":[{"id":1,"state":"current","workers":[]}]}`)
	_, b := call(t, "status", "--runtime-dir", f.dir)
	head, rest, _ := strings.Cut(b.out.String(), "\n")
	if !strings.HasSuffix(head, "config - -") {
		t.Errorf("head %q", head)
	}
	var row []string
	for line := range strings.Lines(rest) {
		if strings.Contains(line, "current") {
			row = strings.Fields(line)
		}
	}
	if len(row) < 5 || row[4] != "-" {
		t.Errorf("generation %q", row)
	}
}

func TestStatusJSONPassesOnWhatItDoesNotKnow(t *testing.T) {
	f := fakeAdmin(t)
	f.answer("GET /v1/status", fakeStatus)
	_, b := call(t, "status", "--json", "--runtime-dir", f.dir)
	var got map[string]any
	if err := json.Unmarshal(b.out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if _, ok := got["future"]; !ok {
		t.Error("an unknown field is lost")
	}
}

func TestConnsAsksForWhatIsWanted(t *testing.T) {
	f := fakeAdmin(t)
	f.answer("GET /v1/conns", `{"conns":[{"id":"2.43.1","kind":"quic","protocol":"h3","listener":"public","remote":"192.0.2.1:5","generation":8,"slot":2}]}`)
	code, b := call(t, "conns", "--json", "--generation", "8", "--slot", "2", "--runtime-dir", f.dir)
	var got []map[string]any
	if err := json.Unmarshal(b.out.Bytes(), &got); err != nil || code != exitDone || len(got) != 1 {
		t.Errorf("exit code %d, %v, output %s", code, err, b.out.String())
	}
	if r := f.requests(); !strings.Contains(r, "generation=8") || !strings.Contains(r, "slot=2") {
		t.Errorf("asked %s", r)
	}
	if _, b := call(t, "conns", "--runtime-dir", f.dir); !strings.Contains(b.out.String(), "192.0.2.1:5") {
		t.Errorf("list for people:\n%s", b.out.String())
	}
}

func TestAnIncompleteListIsAFailure(t *testing.T) {
	f := fakeAdmin(t)
	f.answer("GET /v1/conns", `{"conns":[],"silent":["3#9"]}`)
	code, b := call(t, "conns", "--json", "--runtime-dir", f.dir)
	if code != exitFailed || strings.TrimSpace(b.out.String()) != "[]" {
		t.Errorf("exit code %d, output %s", code, b.out.String())
	}
	oneReason(t, b, "3#9")
}

func TestOrdersReachTheSupervisor(t *testing.T) {
	f := fakeAdmin(t)
	f.answer("POST /v1/conns/close", `{}`)
	f.answer("POST /v1/drain", `{}`)
	f.answer("POST /v1/reload", `{"generation":9}`)
	for _, args := range [][]string{{"conns", "close", "2.43.1"}, {"drain", "--generation", "7"}, {"drain", "--generation", "7", "--cancel"}, {"reload"}} {
		if code, b := call(t, append(args, "--runtime-dir", f.dir)...); code != exitDone {
			t.Errorf("holdfast %v: exit code %d: %s", args, code, b.err.String())
		}
	}
	want := "POST /v1/conns/close {\"id\":\"2.43.1\"}\nPOST /v1/drain {\"cancel\":false,\"generation\":7}\n" +
		"POST /v1/drain {\"cancel\":true,\"generation\":7}\nPOST /v1/reload"
	if got := f.requests(); got != want {
		t.Errorf("asked\n%s", got)
	}
}

func TestStopReturnsWhenTheSupervisorIsGone(t *testing.T) {
	f := fakeAdmin(t)
	f.handle("POST /v1/stop", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "{}")
		go f.server.Close()
	})
	f.answer("GET /v1/status", fakeStatus)
	if code, b := call(t, "stop", "--fast", "--runtime-dir", f.dir); code != exitDone || !strings.Contains(b.out.String(), "stopped") {
		t.Errorf("exit code %d: %s", code, b.err.String())
	}
	if !strings.Contains(f.requests(), `POST /v1/stop {"fast":true}`) {
		t.Errorf("asked %s", f.requests())
	}
}

func TestFaultsOfTheSegmentAreAFailure(t *testing.T) {
	f := fakeAdmin(t)
	f.answer("GET /v1/check-segment", `{"faults":["table: entry 7 has no owner"]}`)
	if code, b := call(t, "check-segment", "--runtime-dir", f.dir); code != exitFailed || !strings.Contains(b.out.String(), "entry 7") {
		t.Errorf("exit code %d, output %s", code, b.out.String())
	}
	f = fakeAdmin(t)
	f.answer("GET /v1/check-segment", `{"faults":[]}`)
	if code, _ := call(t, "check-segment", "--runtime-dir", f.dir); code != exitDone {
		t.Errorf("sound segment: exit code %d", code)
	}
}
