package systemd

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/test/kit"
)

// suites are the systemds that the units are driven under: 257, and 252, which
// lacks Type=notify-reload.
var suites = []string{"trixie", "bookworm"}

// each runs a test under every systemd.
func each(t *testing.T, test func(t *testing.T, m *machine), dropIns ...string) {
	for _, suite := range suites {
		t.Run(suite, func(t *testing.T) { test(t, boot(t, suite, dropIns...)) })
	}
}

// maxExposure is what systemd-analyze security may come to, of 10.
const maxExposure = 1.7

// The units are without fault to systemd itself, and give little away.
func TestUnits(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		m.write("/usr/local/bin/man", "#!/bin/sh\n")                         // verify looks for the pages
		if err := os.Chmod(m.root+"/usr/local/bin/man", 0o755); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
		code, out := m.run("env", "PATH=/usr/local/bin:/usr/bin:/usr/sbin", "systemd-analyze", "verify", unit, "holdfast@edge.service", "holdfast.socket")
		for line := range strings.Lines(out) {
			// What the drop-in for old systemds is there for; it is told of the
			// unit itself all the same.
			if m.legacy && strings.Contains(line, "notify-reload") {
				continue
			}
			t.Errorf("verify: %s", line)
		}
		if code != 0 {
			t.Errorf("verify: exit code %d", code)
		}
		security := m.must("systemd-analyze", "security", "--no-pager", unit)
		found := regexp.MustCompile(`Overall exposure level for \S+: ([0-9.]+)`).FindStringSubmatch(security)
		if found == nil {
			t.Fatalf("no exposure level: %s", security)
		}
		if level, err := strconv.ParseFloat(found[1], 64); err != nil || level > maxExposure {
			t.Errorf("exposure level %s, at most %v", found[1], maxExposure)
		}
	})
}

// C129, C130, C138: reloads by the service manager return when they are done,
// well or not, and cost nobody anything.
func TestReload(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		m.start()
		main := m.property("MainPID")
		l := m.load()
		slowest := time.Duration(0)
		for range 50 {
			begun := time.Now()
			m.must("systemctl", "reload", unit)
			slowest = max(slowest, time.Since(begun))
			m.active()
		}
		t.Logf("the slowest of 50 reloads took %v", slowest)
		if slowest > 5*time.Second {
			t.Error("that is too long")
		}
		if text := m.property("StatusText"); !strings.HasPrefix(text, "generation 51: 2 workers") {
			t.Errorf("status %q", text)
		}

		m.write(configPath, "listeners: [")
		code, _ := m.run("systemctl", "reload", unit)
		if m.legacy && code == 0 {
			t.Error("a failed reload command has exit code 0")
		}
		m.active()
		if text := m.property("StatusText"); !strings.Contains(text, "generation 51") || !strings.Contains(text, "reload: ") {
			t.Errorf("status %q", text)
		}
		m.configure(m.config)
		m.must("systemctl", "reload", unit)
		m.active()
		if text := m.property("StatusText"); !strings.HasPrefix(text, "generation 52: 2 workers") {
			t.Errorf("status %q", text)
		}
		l.mustBeClean(t)
		if m.property("MainPID") != main || m.number("NRestarts") != 0 {
			t.Errorf("main process %s (was %s), %d restarts", m.property("MainPID"), main, m.number("NRestarts"))
		}
	})
}

// C027, C028, C132, C137, C138: the program is replaced under the unit, well and
// badly: the main process stays the same, nobody notices, reloads and the
// watchdog go on, and so does the journal.
func TestUpgrade(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		builds := []string{os.Getenv(envNext), os.Getenv(envBinary)}
		if builds[0] == "" {
			t.Skip("run it by make test-systemd")
		}
		m.dropIn("WatchdogSec=3")
		m.start()
		main := m.property("MainPID")
		upgrade := []string{"holdfast", "upgrade", "--runtime-dir", "/run/holdfast/default"}
		l := m.load()
		for round := range 4 {
			m.install(builds[round%2], "/usr/bin/holdfast")
			m.must(upgrade...)
			m.active()
			m.must("systemctl", "reload", unit)
			m.active()
			if text := m.property("StatusText"); !strings.HasPrefix(text, fmt.Sprintf("generation %d: 2 workers", 3+2*round)) {
				t.Errorf("after %d upgrades: status %q", round+1, text)
			}
		}
		for name, program := range map[string]string{"exits at once": "exit 1", "crashes soon": "sleep 0.3; kill -SEGV $$"} {
			m.write("/usr/bin/holdfast.bad", "#!/bin/sh\n"+program+"\n")
			if err := os.Chmod(m.root+"/usr/bin/holdfast.bad", 0o755); err != nil { //nolint:gosec // a program
				t.Fatal(err)
			}
			if code, out := m.run(append(upgrade, "--binary", "/usr/bin/holdfast.bad")...); code == 0 || strings.TrimSpace(out) == "" {
				t.Errorf("a program that %s: exit code %d: %s", name, code, out)
			}
			m.active()
		}
		time.Sleep(7 * time.Second) // more than twice the watchdog's limit
		m.active()
		m.must("systemctl", "reload", unit)
		l.mustBeClean(t)
		if m.property("MainPID") != main || m.number("NRestarts") != 0 {
			t.Errorf("main process %s (was %s), %d restarts", m.property("MainPID"), main, m.number("NRestarts"))
		}
		journal := m.must("journalctl", "--no-pager", "-o", "cat", "_PID="+main)
		for generation := 2; generation <= 10; generation++ {
			if n := strings.Count(journal, fmt.Sprintf(`"msg":"generation is current","generation":%d,`, generation)); n != 1 {
				t.Errorf("the journal has generation %d becoming current %d times", generation, n)
			}
		}
		m.must("systemctl", "stop", unit)
		if result := m.property("Result"); result != "success" {
			t.Errorf("result of the unit: %s", result)
		}
	})
}

// C051, C071: a supervisor that is killed, also in the middle of a reload, is
// started again within seconds; its workers serve on, and are taken over.
func TestKilledSupervisor(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		m.start()
		l := m.load()
		for round := range 4 {
			before, workers := m.property("MainPID"), m.workers()
			if round%2 == 1 {
				m.must("systemctl", "reload", "--no-block", unit)
				time.Sleep(50 * time.Millisecond) // the moment that systemd's own report names
			}
			m.must("kill", "-9", before)
			m.awaitRestart(before)
			now := m.workers()
			if round%2 == 0 && !slices.Equal(now, workers) {
				t.Errorf("workers %v, before the crash %v", now, workers)
			}
			m.must("systemctl", "reload", unit)
			m.active()
		}
		l.mustBeClean(t)
		m.must("systemctl", "stop", unit)
		if left := m.workers(); len(left) > 0 {
			t.Errorf("processes %v are left", left)
		}
	})
}

// A worker that is killed costs its own connections and nothing else.
func TestKilledWorker(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		m.start()
		main := m.property("MainPID")
		l := m.load()
		m.must("kill", "-9", m.workers()[0])
		kit.Eventually(t, 10*time.Second, "another worker", func() error {
			if text := m.property("StatusText"); len(m.workers()) != 2 || strings.Contains(text, "missing") {
				return fmt.Errorf("status %q", text)
			}
			return nil
		})
		m.active()
		if m.property("MainPID") != main {
			t.Error("the main process is another one")
		}
		// Each connection is on one of two workers; which, the kernel says.
		l.mustLose(t, 29, 10)
	})
}

// C131: a supervisor that is stopped is noticed, killed and started anew; its
// workers serve on meanwhile. One whose worker is stopped is left alone.
func TestWatchdog(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		m.dropIn("WatchdogSec=3\nTimeoutAbortSec=2")
		m.start()
		before := m.property("MainPID")
		m.must("kill", "-STOP", m.workers()[0])
		time.Sleep(7 * time.Second) // more than twice the limit
		m.must("kill", "-CONT", m.workers()[0], m.workers()[1])
		if m.property("MainPID") != before {
			t.Error("the supervisor was killed for a worker that hung")
		}
		l := m.load()
		m.must("kill", "-STOP", before)
		m.awaitRestart(before)
		m.must("systemctl", "reload", unit)
		l.mustBeClean(t)
	})
}

// C112: a socket unit with one datagram and one stream socket, under which the
// service needs no capability.
func TestSocketUnit(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		address := m.config.Listeners[0].Address
		m.config.Workers = 4
		m.configure(m.config)
		m.write(unitDir+"/holdfast.socket", fmt.Sprintf("[Socket]\nListenDatagram=%s\nListenStream=%s\nFileDescriptorName=public\nReusePort=yes\n", address, address))
		m.dropIn("AmbientCapabilities=\nCapabilityBoundingSet=")
		m.must("systemctl", "start", "holdfast.socket")
		udp, tcp := kit.BoundSockets(port(t, address))
		if len(udp) != 1 || len(tcp) != 1 {
			t.Fatalf("sockets of the unit: udp %v, tcp %v", udp, tcp)
		}
		// The first client starts the service.
		l := m.load()
		m.active()
		for range 3 {
			m.must("systemctl", "reload", unit)
		}
		nowUDP, nowTCP := kit.BoundSockets(port(t, address))
		if !slices.Contains(nowUDP, udp[0]) || !slices.Equal(nowTCP, tcp) {
			t.Errorf("sockets udp %v, tcp %v; the unit's are %v and %v", nowUDP, nowTCP, udp, tcp)
		}
		l.mustBeClean(t)
	})
}

// C138: a restart closes connections in order; with the store the sockets stay,
// and who knocks meanwhile is answered.
func TestRestartWithStore(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		m.start()
		address := m.config.Listeners[0].Address
		kit.Eventually(t, 5*time.Second, "sockets and segment are stored", func() error {
			if n := m.number("NFileDescriptorStore"); n != 4 {
				return fmt.Errorf("%d descriptors", n)
			}
			return nil
		})
		udp, tcp := kit.BoundSockets(port(t, address))
		l := m.load()
		for range 3 {
			before := m.property("MainPID")
			begun := time.Now()
			m.must("systemctl", "restart", unit)
			t.Logf("restarted in %v", time.Since(begun))
			m.awaitRestart(before)
			l.awaitBack(t)
		}
		nowUDP, nowTCP := kit.BoundSockets(port(t, address))
		slices.Sort(udp)
		slices.Sort(nowUDP)
		if !slices.Equal(udp, nowUDP) || !slices.Equal(tcp, nowTCP) {
			t.Errorf("sockets %v %v, before %v %v", nowUDP, nowTCP, udp, tcp)
		}
		l.mustLose(t, 3*30, 3*10)
		m.must("systemctl", "stop", unit)
		if n := m.number("NFileDescriptorStore"); n != 0 {
			t.Errorf("%d descriptors are stored after the stop", n)
		}
	}, "fdstore")
}

// C131: a stop that takes longer than the unit's limit is not cut short while
// the supervisor is at work: a response that takes its time is completed.
func TestLongStop(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		m.config = m.config.With("drain", "{stop_timeout: 40s, goaway_window: 0s}")
		m.configure(m.config)
		m.dropIn("TimeoutStopSec=3")
		m.start()
		c, err := kit.Dial(t.Context(), kit.ClientOptions{Server: m.config.Listeners[0].Address, StreamWindow: 1 << 17})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		const size, rate = 12 << 20, 1 << 20
		transfer := kit.StartDownload(t, c, fmt.Sprintf("/speedtest?bytes=%d", size), rate)
		transfer.AwaitBytes(t, rate, 10*time.Second)
		begun := time.Now()
		m.must("systemctl", "stop", unit)
		took := time.Since(begun)
		t.Logf("stopped in %v", took)
		if took < 6*time.Second {
			t.Error("it did not wait for the transfer")
		}
		if _, _, err := transfer.Wait(t, 5*time.Second); err != nil || transfer.Bytes() != size {
			t.Errorf("transfer of %d bytes: %d, %v", size, transfer.Bytes(), err)
		}
		if result := m.property("Result"); result != "success" {
			t.Errorf("result of the unit: %s", result)
		}
	})
}

func port(t *testing.T, address string) int {
	t.Helper()
	n, err := strconv.Atoi(address[strings.LastIndex(address, ":")+1:])
	if err != nil {
		t.Fatal(err)
	}
	return n
}
