package systemd

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/test/kit"
)

const (
	// envRoots names the directory with a Debian root for each systemd,
	// envBinary the program under test and envNext another build of it.
	envRoots  = "HOLDFAST_SYSTEMD_ROOTS"
	envBinary = "HOLDFAST_SYSTEMD_BINARY"
	envNext   = "HOLDFAST_SYSTEMD_NEXT"

	unit       = "holdfast.service"
	unitDir    = "/etc/systemd/system"
	configPath = "/etc/holdfast/holdfast.yaml"
	// cannotBoot is the exit code of boot-systemd.sh on a host that can't.
	cannotBoot = 77
)

// machine is a booted systemd with the service installed in it.
type machine struct {
	t      *testing.T
	pid    string // of its PID 1, as this process sees it
	root   string
	config kit.Config
	legacy bool // before 253, which lacks notify-reload
}

// boot starts a systemd of the Debian suite and installs the service with the
// drop-ins.
func boot(t *testing.T, suite string, dropIns ...string) *machine {
	t.Helper()
	roots, binary := os.Getenv(envRoots), os.Getenv(envBinary)
	if roots == "" || binary == "" {
		t.Skip("run it by make test-systemd")
	}
	pidFile := filepath.Join(t.TempDir(), "pid")
	out, err := exec.Command("../../scripts/boot-systemd.sh", filepath.Join(roots, "systemd-"+suite), pidFile).CombinedOutput()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok && failed.ExitCode() == cannotBoot {
		t.Skipf("%s", out)
	}
	if err != nil {
		t.Fatalf("boot: %v: %s", err, out)
	}
	pid, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, pid: strings.TrimSpace(string(pid)), legacy: suite == "bookworm"}
	m.root = "/proc/" + m.pid + "/root"
	t.Cleanup(m.powerOff)

	m.install(binary, "/usr/bin/holdfast")
	m.install("../../systemd/holdfast.sysusers.conf", "/usr/lib/sysusers.d/holdfast.conf")
	for _, name := range []string{unit, "holdfast@.service", "holdfast.socket"} {
		m.install("../../systemd/"+name, unitDir+"/"+name)
	}
	if m.legacy {
		dropIns = append(dropIns, "old-systemd")
	}
	for _, name := range dropIns {
		m.install("../../systemd/holdfast.service.d/"+name+".conf", unitDir+"/"+unit+".d/"+name+".conf")
	}
	m.must("systemd-sysusers")
	m.config = kit.Config{
		Workers: 2, Body: "v1",
		Listeners: []kit.Listener{{Name: "public", Address: fmt.Sprintf("127.0.0.1:%d", kit.FreePort(t, "127.0.0.1"))}},
	}
	m.configure(m.config)
	m.must("systemctl", "daemon-reload")
	return m
}

func (m *machine) powerOff() {
	if m.t.Failed() {
		_, log := m.run("journalctl", "--no-pager", "-n", "80", "-o", "cat", "-u", unit)
		m.t.Logf("journal:\n%s", log)
	}
	m.run("systemctl", "poweroff", "--force", "--force")
	kit.Eventually(m.t, 10*time.Second, "power off", func() error {
		if _, err := os.Stat("/proc/" + m.pid); err == nil {
			return errors.New("its PID 1 runs")
		}
		return nil
	})
}

// run runs a command in the machine and returns its exit code and output.
func (m *machine) run(line ...string) (int, string) {
	out, err := exec.Command("nsenter", append([]string{"-t", m.pid, "-a"}, line...)...).CombinedOutput()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		return failed.ExitCode(), string(out)
	}
	if err != nil {
		return -1, err.Error()
	}
	return 0, string(out)
}

func (m *machine) must(line ...string) string {
	m.t.Helper()
	code, out := m.run(line...)
	if code != 0 {
		m.t.Fatalf("%q: exit code %d: %s", line, code, out)
	}
	return out
}

// install copies a file into the machine, replacing the old one by rename.
func (m *machine) install(from, to string) {
	m.t.Helper()
	mode := os.FileMode(0o644)
	if strings.HasPrefix(to, "/usr/bin/") {
		mode = 0o755
	}
	to = m.root + to
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(to), 0o755)
	}
	if err == nil {
		err = os.WriteFile(to+".new", data, mode)
	}
	if err == nil {
		err = os.Rename(to+".new", to)
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) write(to, text string) {
	m.t.Helper()
	if err := os.MkdirAll(filepath.Dir(m.root+to), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(m.root+to, []byte(text), 0o644); err != nil { //nolint:gosec // read by the service's user
		m.t.Fatal(err)
	}
}

func (m *machine) configure(c kit.Config) { m.write(configPath, c.YAML("/usr/share")) }

// dropIn adds settings to the unit.
func (m *machine) dropIn(text string) {
	m.t.Helper()
	m.write(unitDir+"/"+unit+".d/test.conf", "[Service]\n"+text+"\n")
	m.must("systemctl", "daemon-reload")
}

// property is one of the unit, as systemd shows it.
func (m *machine) property(name string) string {
	m.t.Helper()
	return strings.TrimSpace(m.must("systemctl", "show", "--value", "-p", name, unit))
}

// start starts the service, which is ready then.
func (m *machine) start() {
	m.t.Helper()
	m.must("systemctl", "start", unit)
	m.active()
}

func (m *machine) active() {
	m.t.Helper()
	if got := m.property("ActiveState"); got != "active" {
		m.t.Errorf("the unit is %s", got)
	}
}

// await returns when the unit is active with another main process than the
// one of before.
func (m *machine) awaitRestart(before string) {
	m.t.Helper()
	kit.Eventually(m.t, 20*time.Second, "another main process", func() error {
		now, state := m.property("MainPID"), m.property("ActiveState")
		if now == before || now == "0" || state != "active" {
			return fmt.Errorf("main process %s (was %s), %s", now, before, state)
		}
		return nil
	})
}

// workers returns the processes of the unit besides the main one, as the
// machine numbers them.
func (m *machine) workers() []string {
	m.t.Helper()
	main, group := m.property("MainPID"), m.property("ControlGroup")
	if group == "" {
		return nil // systemd has removed it, since it was empty
	}
	data, err := os.ReadFile(m.root + "/sys/fs/cgroup" + group + "/cgroup.procs")
	if err != nil {
		m.t.Fatal(err)
	}
	// The file shows the reader's numbers; those of the machine come last.
	var out []string
	for _, pid := range strings.Fields(string(data)) {
		status, err := os.ReadFile("/proc/" + pid + "/status")
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(status)) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == "NSpid:" && f[len(f)-1] != main {
				out = append(out, f[len(f)-1])
			}
		}
	}
	return out
}

// load is clients at work.
type load struct{ quic, tcp *kit.Fleet }

func (m *machine) load() load {
	m.t.Helper()
	client := kit.ClientOptions{Server: m.config.Listeners[0].Address}
	return load{
		quic: kit.StartFleet(m.t, kit.FleetOptions{Client: client, N: 30, Interval: 100 * time.Millisecond, Reconnect: true}),
		tcp:  kit.StartFleet(m.t, kit.FleetOptions{Client: client, N: 10, Interval: 100 * time.Millisecond, TCP: "h2", Reconnect: true}),
	}
}

func (l load) mustBeClean(t *testing.T) {
	t.Helper()
	l.quic.Stop().MustBeClean(t)
	l.tcp.Stop().MustBeClean(t)
}

// mustLose checks that at most so many connections were lost and that whoever
// lost one came back.
func (l load) mustLose(t *testing.T, quic, tcp int) {
	t.Helper()
	l.awaitBack(t)
	for _, f := range []struct {
		report kit.Report
		most   int
	}{{l.quic.Stop(), quic}, {l.tcp.Stop(), tcp}} {
		t.Log(f.report)
		if lost := len(f.report.Lost); lost > f.most {
			t.Errorf("%d connections lost, at most %d are accounted for: %v", lost, f.most, f.report)
		}
		if f.report.Strangers > 0 {
			t.Errorf("%d strangers", f.report.Strangers)
		}
	}
}

// awaitBack returns when all clients are connected.
func (l load) awaitBack(t *testing.T) {
	t.Helper()
	kit.Eventually(t, 15*time.Second, "whoever lost a connection is back", func() error {
		for _, r := range []kit.Report{l.quic.Report(), l.tcp.Report()} {
			if r.Reconnects < len(r.Lost) {
				return fmt.Errorf("%d lost, %d came back", len(r.Lost), r.Reconnects)
			}
		}
		return nil
	})
}

func (m *machine) number(name string) int {
	m.t.Helper()
	n, err := strconv.Atoi(m.property(name))
	if err != nil {
		m.t.Fatalf("%s: %v", name, err)
	}
	return n
}
