package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/config"
	"github.com/holdfast-quic/holdfast/supervisor"
)

func TestBuiltinConfigurationBecomesAGateway(t *testing.T) {
	dir := t.TempDir()
	s, err := spec(config.Builtin(), dir)
	if err != nil {
		t.Fatal(err)
	}
	var p payload
	if err := json.Unmarshal(s.Payload, &p); err != nil {
		t.Fatal(err)
	}
	o := p.Gateway
	if len(s.Listeners) != 1 || !s.Listeners[0].QUIC || !s.Listeners[0].TCP || s.Listeners[0].Address != "127.0.0.1:8443" {
		t.Errorf("listeners are %+v", s.Listeners)
	}
	if len(o.Listeners) != 1 || len(o.Listeners[0].Certificates) != 1 || len(o.Routes) != len(config.Builtin().Routes) {
		t.Errorf("the gateway has %d listeners and %d routes", len(o.Listeners), len(o.Routes))
	}
}

func TestConfigurationReachesSupervisorAndWorkers(t *testing.T) {
	c, err := config.Parse("test.yaml", []byte(`
listeners:
  - {name: long, address: "127.0.0.1:8443", tls: {self_signed: true}}
  - {name: short, address: "127.0.0.1:8444", tls: {self_signed: true}, drain_timeout: 20s}
routes: [{path: /, respond: {}}]
drain: {timeout: 2h, grace: 0s}
liveness: {timeout: 0s}
log: {level: warn, format: console}
`))
	if err != nil {
		t.Fatal(err)
	}
	s, err := spec(c, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if s.Drain.Timeout != 2*time.Hour || s.Listeners[0].DrainTimeout != 2*time.Hour || s.Listeners[1].DrainTimeout != 20*time.Second {
		t.Errorf("limits %v, %+v", s.Drain.Timeout, s.Listeners)
	}
	if s.Drain.Grace >= 0 || s.Liveness >= 0 {
		t.Errorf("what is turned off: grace %v, liveness %v", s.Drain.Grace, s.Liveness)
	}
	var p payload
	if err := json.Unmarshal(s.Payload, &p); err != nil {
		t.Fatal(err)
	}
	if p.LogLevel != "warn" || p.LogFormat != "console" {
		t.Errorf("workers log from %q on in the form %q", p.LogLevel, p.LogFormat)
	}
	if s.Steering != supervisor.SteeringAuto {
		t.Errorf("steering %q", s.Steering)
	}
	if s, err = spec(config.Builtin(), t.TempDir()); err != nil || s.Drain.Grace != 5*time.Second || s.Liveness != 30*time.Second {
		t.Errorf("defaults: %v, grace %v, liveness %v", err, s.Drain.Grace, s.Liveness)
	}
}

func TestSelfSignedCertificateIsMadeOnceAndPrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	first, err := selfSigned(dir, []string{"gw.example", "192.0.2.7"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	again, err := selfSigned(dir, []string{"another.example"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if string(first.Chain) != string(again.Chain) {
		t.Error("a second start has another certificate")
	}
	path := filepath.Join(dir, selfSignedFile)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file has mode %v, %v", info.Mode(), err)
	}
	if err := os.WriteFile(path, []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := selfSigned(dir, nil, time.Now()); err == nil {
		t.Error("a damaged file is not reported")
	}
}

func TestEachWorkerHasItsShareOfTheProcessors(t *testing.T) {
	if got := procs(1 << 20); got > minProcs {
		t.Errorf("one of very many workers gets %d processors", got)
	}
	if got := procs(1); got < 1 {
		t.Errorf("a single worker gets %d processors", got)
	}
}

func TestDirectoriesFollowTheName(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", "/xdg/run")
	t.Setenv("XDG_STATE_HOME", "/xdg/state")
	t.Setenv(envRuntimeDir, "")
	i := instance{name: "edge"}
	if err := i.resolve(); err != nil {
		t.Fatal(err)
	}
	run, state := "/xdg/run/holdfast/edge", "/xdg/state/holdfast/edge"
	if os.Getuid() == 0 {
		run, state = "/run/holdfast/edge", "/var/lib/holdfast/edge"
	}
	if i.runtimeDir != run || i.stateDir != state {
		t.Errorf("directories are %s and %s", i.runtimeDir, i.stateDir)
	}
	t.Setenv(envRuntimeDir, "/other")
	i = instance{name: "edge"}
	if err := i.resolve(); err != nil || i.runtimeDir != "/other" {
		t.Errorf("with the environment: %s, %v", i.runtimeDir, err)
	}
}
