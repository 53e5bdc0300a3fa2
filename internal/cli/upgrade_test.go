package cli

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

func TestUpgradeFollowsTheOperation(t *testing.T) {
	f := fakeAdmin(t)
	f.answer("POST /v1/upgrade", `{"operation":7}`)
	asked := 0
	f.handle("GET /v1/operations/7", func(w http.ResponseWriter, _ *http.Request) {
		asked++
		switch asked {
		case 1: // the supervisor becomes another program while it answers
			c, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				c.Close()
			}
		case 2:
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte(`{"error":"the supervisor is stopping","code":"busy"}`))
		case 3:
			_, _ = w.Write([]byte(`{"id":7,"kind":"upgrade","state":"running","stage":"exec"}`))
		default:
			_, _ = w.Write([]byte(`{"id":7,"kind":"upgrade","state":"done","generation":9,"version":"2.0","build_id":"abc"}`))
		}
	})
	code, b := call(t, "upgrade", "--binary", "some/program", "--runtime-dir", f.dir)
	if code != exitDone || b.out.String() != "generation 9 is current (version 2.0, build abc)\n" {
		t.Errorf("exit code %d, output %q, %q", code, b.out.String(), b.err.String())
	}
	path, _ := filepath.Abs("some/program")
	if want := `POST /v1/upgrade {"binary":"` + path + `"}`; !strings.HasPrefix(f.requests(), want+"\n") {
		t.Errorf("requests:\n%s\nwant first %s", f.requests(), want)
	}
}

func TestUpgradeExitCodes(t *testing.T) {
	for _, tc := range []struct {
		name, begin, operation string
		args                   []string
		code                   int
		reason                 string
	}{
		{"failed", `{"operation":1}`, `{"id":1,"state":"failed","code":"failed","reason":"no program lies at /x"}`, nil, exitFailed, "no program lies at /x"},
		{"invalid configuration", `{"operation":1}`, `{"id":1,"state":"failed","code":"invalid_config","reason":"a.yaml:1:1: wrong"}`, nil, exitConfig, "a.yaml:1:1: wrong"},
		{"stopping", `{"operation":1}`, `{"id":1,"state":"failed","code":"busy","reason":"the supervisor is stopping"}`, nil, exitFailed, "is stopping"},
		{"takes too long", `{"operation":1}`, `{"id":1,"state":"running"}`, []string{"--timeout", "50ms"}, exitTimeout, "not done within 50ms"},
		{"soak without a canary", "", "", []string{"--soak", "1m"}, exitUsage, "--canary"},
		{"auto without a canary", "", "", []string{"--auto"}, exitUsage, "--canary"},
		{"no share", "", "", []string{"--canary", "0"}, exitUsage, "percentage"},
		{"all", "", "", []string{"--canary", "100%"}, exitUsage, "percentage"},
		{"no number", "", "", []string{"--canary", "some"}, exitUsage, `found "some"`},
		{"negative soak", "", "", []string{"--canary", "5%", "--soak", "-1s"}, exitUsage, "negative"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := fakeAdmin(t)
			f.answer("POST /v1/upgrade", tc.begin)
			f.answer("GET /v1/operations/1", tc.operation)
			code, b := call(t, append([]string{"upgrade", "--runtime-dir", f.dir}, tc.args...)...)
			if code != tc.code || !strings.Contains(b.err.String(), tc.reason) {
				t.Errorf("exit code %d: %s", code, b.err.String())
			}
			oneReason(t, b)
		})
	}
	code, b := call(t, "upgrade", "--runtime-dir", shortDir(t))
	if code != exitNoSupervisor {
		t.Errorf("without a supervisor: exit code %d", code)
	}
	oneReason(t, b)
}

func TestUpgradeAsksForACanary(t *testing.T) {
	f := fakeAdmin(t)
	f.answer("POST /v1/upgrade", `{"operation":1}`)
	f.answer("GET /v1/operations/1", `{"id":1,"state":"done","generation":2}`)
	code, b := call(t, "upgrade", "--canary", "2.5%", "--runtime-dir", f.dir)
	if code != exitDone || !strings.Contains(b.out.String(), "generation 2 is a canary with 2.5 % of new connections") {
		t.Errorf("exit code %d, output %q", code, b.out.String())
	}
	if code, _ := call(t, "upgrade", "--canary", "5", "--soak", "10m", "--auto", "--runtime-dir", f.dir); code != exitDone {
		t.Errorf("exit code %d", code)
	}
	for _, want := range []string{`POST /v1/upgrade {"canary":2.5}`, `POST /v1/upgrade {"canary":5,"soak":600000000000,"auto":true}`} {
		if !strings.Contains(f.requests(), want) {
			t.Errorf("requests:\n%s\nwant %s", f.requests(), want)
		}
	}
}

// A new program is asked with flags that each version knows.
func TestVerifyArguments(t *testing.T) {
	a := &app{instance: instance{name: "edge", runtimeDir: "/run/x", stateDir: "/var/x"}}
	args := a.verifyArgs("a.yaml")
	if got, want := strings.Join(args, " "), "verify --config=a.yaml --name=edge --runtime-dir=/run/x --state-dir=/var/x"; got != want {
		t.Errorf("asks %q, want %q", got, want)
	}
	code, b := call(t, args...)
	if code == exitDone || !strings.Contains(b.err.String(), "only a supervisor can ask for this") {
		t.Errorf("without a supervisor: exit code %d: %s", code, b.err.String())
	}
}
