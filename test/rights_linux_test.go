package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-quic/holdfast/test/kit"
)

// nobody is a user without rights that each Linux has.
const nobody = 65534

// needRoot skips a test that has to become other users.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// publicDir makes a temporary directory that other users may look into.
func publicDir(t *testing.T, owner int) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hf")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, owner, owner); err != nil {
		t.Fatal(err)
	}
	return dir
}

// rights are the lines of /proc/PID/status about what a process may do.
func rights(t *testing.T, pid int) map[string]string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		m[name] = strings.Join(strings.Fields(value), " ")
	}
	return m
}

const noCapabilities = "0000000000000000"

// mustBePowerless fails the test unless all current workers run as the user,
// in the groups, and neither have a capability nor a way to get one.
func mustBePowerless(t *testing.T, in *kit.Instance, uid int, groups string) {
	t.Helper()
	g, ok := in.Status().Current()
	if !ok {
		t.Fatal("no generation is current")
	}
	for _, w := range g.Workers {
		r := rights(t, w.PID)
		id := fmt.Sprintf("%[1]d %[1]d %[1]d %[1]d", uid)
		if r["Uid"] != id || r["Gid"] != id || r["Groups"] != groups {
			t.Errorf("worker %d: uid %s, gid %s, groups %q; expected %d and %q", w.PID, r["Uid"], r["Gid"], r["Groups"], uid, groups)
		}
		for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
			// Without CAP_SETPCAP the bounding set stays; nothing can be had from it.
			if r[set] != noCapabilities && (set != "CapBnd" || has(t, in.PID(), unix.CAP_SETPCAP)) {
				t.Errorf("worker %d: %s is %s", w.PID, set, r[set])
			}
		}
		if r["NoNewPrivs"] != "1" {
			t.Errorf("worker %d can get new privileges", w.PID)
		}
	}
}

// has reports whether a process can use a capability.
func has(t *testing.T, pid, capability int) bool {
	t.Helper()
	n, err := strconv.ParseUint(rights(t, pid)["CapEff"], 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n&(1<<capability) != 0
}

// onlyBind is CAP_NET_BIND_SERVICE alone.
var onlyBind = fmt.Sprintf("%016x", 1<<unix.CAP_NET_BIND_SERVICE)

// lowPort returns a privileged port that is free.
func lowPort(t *testing.T, from int) int {
	t.Helper()
	for port := from; port < from+200; port++ {
		if udp, tcp := kit.BoundSockets(port); len(udp)+len(tcp) == 0 {
			return port
		}
	}
	t.Fatal("no low port is free")
	return 0
}

// reachable fails the test unless clients can connect there.
func reachable(t *testing.T, address string) {
	t.Helper()
	clients, result := kit.Burst(t, kit.ClientOptions{Server: address}, 5, 1)
	result.MustBeClean(t)
	for _, c := range clients {
		if c != nil {
			c.Close()
		}
	}
}

func local(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// lowPortsAreOpen reports whether any user may bind them on this host.
func lowPortsAreOpen() bool {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_unprivileged_port_start")
	return err == nil && strings.TrimSpace(string(text)) == "0"
}

// C145: started as root with a user for the workers. A low port, another one
// at a reload, a crash, a program that was replaced, an upgrade.
func TestWorkersOfAnotherUser(t *testing.T) {
	needRoot(t)
	port := lowPort(t, 443)
	files := publicDir(t, 0)
	access := filepath.Join(files, "access.log")
	config := kit.Config{Listeners: []kit.Listener{{Name: "public", Address: local(port)}}}.
		With("user", "nobody").With("limits", "{nofile: 4096}").With("access_log", "{path: "+access+"}").With("log", "{path: "+filepath.Join(files, "holdfast.log")+"}")
	in, program := installed(t, kit.Options{Config: config})
	mustBePowerless(t, in, nobody, fmt.Sprint(nobody))
	if r := rights(t, in.PID()); r["NoNewPrivs"] != "0" || r["CapEff"] != rights(t, os.Getpid())["CapEff"] {
		t.Errorf("the supervisor has lost something: %v", r)
	}
	fleet := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 20})
	tcp := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 5, TCP: "h2"})

	second := lowPort(t, port+1)
	config = in.Config
	config.Listeners = append(config.Listeners, kit.Listener{Name: "second", Address: local(second)})
	in.WriteConfig(config)
	in.Reload()
	mustBePowerless(t, in, nobody, fmt.Sprint(nobody))
	reachable(t, local(second))
	fleet.Stop().MustBeClean(t)
	tcp.Stop().MustBeClean(t)

	// The image of a generation is run by its descriptor when it is no longer
	// in its place.
	if err := os.Remove(program); err != nil {
		t.Fatal(err)
	}
	g, _ := in.Status().Current()
	victim := g.Workers[0]
	if err := kit.Signal(victim.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	in.AwaitStatus(10*time.Second, "another worker in its place", func(st kit.Status) error {
		g, _ := st.Current()
		for _, w := range g.Workers {
			if w.PID == victim.PID || w.Phase != "serving" {
				return fmt.Errorf("worker %+v", w)
			}
		}
		return nil
	})
	mustBePowerless(t, in, nobody, fmt.Sprint(nobody))

	// Log files are the workers' to open, after a rotation too.
	if err := os.Rename(access, access+".1"); err != nil {
		t.Fatal(err)
	}
	in.Signal(syscall.SIGUSR1)
	kit.Eventually(t, 5*time.Second, "requests in the new log file", func() error {
		body(t, dial(t, in.Client()), "/")
		info, err := os.Stat(access)
		if err == nil && info.Size() == 0 {
			err = fmt.Errorf("%s is empty", access)
		}
		return err
	})
	if info, err := os.Stat(access); err != nil || info.Sys().(*syscall.Stat_t).Uid != nobody {
		t.Errorf("%s: %+v, %v", access, info, err)
	}
}

// The user is that of a generation: a reload changes it, and changes it back.
func TestReloadChangesTheUser(t *testing.T) {
	needRoot(t)
	in := kit.Start(t, kit.Options{})
	groups := rights(t, os.Getpid())["Groups"]
	mustBePowerless(t, in, 0, groups)
	fleet := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 10})
	for _, c := range []struct {
		user   string
		group  string
		uid    int
		groups string
	}{{"nobody", "nogroup", nobody, fmt.Sprint(nobody)}, {"4711", "4711", 4711, ""}, {"", "", 0, groups}} {
		config := in.Config
		if c.user != "" {
			config = config.With("user", c.user).With("group", c.group)
		}
		in.WriteConfig(config)
		in.Reload()
		mustBePowerless(t, in, c.uid, c.groups)
	}
	current := in.Current()
	in.WriteConfig(in.Config.With("user", "nosuchuser"))
	if r := in.CLI("reload"); r.Code != 3 || !strings.Contains(r.Stderr, `: user: found the unknown user "nosuchuser", expected the name or the number of a user`) || !strings.Contains(r.Stderr, "holdfast.yaml:") {
		t.Errorf("exit code %d: %s", r.Code, r.Stderr)
	}
	if in.Current() != current {
		t.Error("another generation is current")
	}
	fleet.Stop().MustBeClean(t)
}

// A program that is closed to the user is a clear error.
func TestProgramClosedToTheUser(t *testing.T) {
	needRoot(t)
	in, program := installed(t, kit.Options{})
	if err := os.Chmod(program, 0o700); err != nil {
		t.Fatal(err)
	}
	in.WriteConfig(in.Config.With("user", "nobody"))
	if r := in.CLI("reload"); r.Code != 1 || !strings.Contains(r.Stderr, "is not for nobody:nogroup: its mode is 0700 and it belongs to 0:0; chmod a+rx it") {
		t.Errorf("exit code %d: %s", r.Code, r.Stderr)
	}
	if err := os.Chmod(program, 0o755); err != nil {
		t.Fatal(err)
	}
	// A directory on the way may be closed.
	if err := os.Chmod(filepath.Dir(program), 0o700); err != nil {
		t.Fatal(err)
	}
	in.Reload()
	mustBePowerless(t, in, nobody, fmt.Sprint(nobody))
}

// asNobody is the command line that runs another one as nobody, with those
// capabilities: in the form of setpriv, or "" for none.
func asNobody(capabilities string) []string {
	line := []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"}
	if capabilities != "" {
		line = append(line, "--inh-caps="+capabilities, "--ambient-caps="+capabilities)
	}
	return line
}

// userInstance runs an instance as nobody.
func userInstance(t *testing.T, capabilities string, config kit.Config) (in *kit.Instance, program string) {
	t.Helper()
	dir := publicDir(t, nobody)
	program = kit.Install(t, kit.Build(t, "1.0.0"), filepath.Join(publicDir(t, 0), "holdfast"))
	in = kit.Prepare(t, kit.Options{Dir: dir, Prefix: asNobody(capabilities), Program: program, Config: config})
	return in, program
}

// C145: started as a normal user with the right to bind low ports alone.
func TestOnlyTheBindCapability(t *testing.T) {
	needRoot(t)
	port := lowPort(t, 443)
	config := kit.Config{Listeners: []kit.Listener{{Name: "public", Address: local(port)}}}
	in, _ := userInstance(t, "+net_bind_service", config)
	in.Launch()
	in.AwaitReady()
	check := func() {
		t.Helper()
		if r := rights(t, in.PID()); r["CapEff"] != onlyBind || r["CapPrm"] != onlyBind {
			t.Errorf("the supervisor has %s", r["CapEff"])
		}
		mustBePowerless(t, in, nobody, "")
	}
	check()
	fleet := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 10})
	second := lowPort(t, port+1)
	config = in.Config
	config.Listeners = append(slices.Clone(config.Listeners), kit.Listener{Name: "second", Address: local(second)})
	in.WriteConfig(config)
	in.HUP()
	in.AwaitGeneration(2)
	check()
	reachable(t, local(second))
	fleet.Stop().MustBeClean(t)

	// It can be no other user.
	in.WriteConfig(config.With("user", "4711").With("group", "4711"))
	if r := in.CLI("reload"); r.Code != 3 || !strings.Contains(r.Stderr, "without CAP_SETUID, CAP_SETGID, CAP_KILL; start it as root") {
		t.Errorf("exit code %d: %s", r.Code, r.Stderr)
	}
	// But its own.
	in.WriteConfig(config.With("user", "nobody"))
	in.Reload()
	check()
}

// A normal user without any right: high ports, and low ones that are passed.
func TestNormalUserThroughout(t *testing.T) {
	needRoot(t)
	in, _ := userInstance(t, "", kit.Config{})
	in.Launch()
	in.AwaitReady()
	mustBePowerless(t, in, nobody, "")
	fleet := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 5})
	in.Reload()
	mustBePowerless(t, in, nobody, "")
	fleet.Stop().MustBeClean(t)
	if lowPortsAreOpen() {
		return
	}
	port := lowPort(t, 443)
	in.WriteConfig(in.Config.WithListener(kit.Listener{Name: "low", Address: local(port)}))
	if r := in.CLI("reload"); r.Code != 1 || !strings.Contains(r.Stderr, "CAP_NET_BIND_SERVICE") {
		t.Errorf("exit code %d: %s", r.Code, r.Stderr)
	}
}

// grant gives a program the right to bind low ports by its file.
func grant(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath("setcap"); err != nil {
		t.Skip("setcap is not installed")
	}
	if out, err := exec.Command("setcap", "cap_net_bind_service=+ep", program).CombinedOutput(); err != nil {
		t.Skipf("setcap: %v: %s", err, out)
	}
}

// C049, first half: the file of a program that had the right to bind low ports
// was replaced by one without. A reload warns; it still has the right.
func TestFileCapabilityIsGone(t *testing.T) {
	needRoot(t)
	if lowPortsAreOpen() {
		t.Skip("anybody may bind low ports here")
	}
	in, program, second := fileCapability(t)
	fleet := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 5})
	in.Reload()
	if strings.Contains(in.Log(), "the program on disk has no CAP_NET_BIND_SERVICE") {
		t.Error("a warning without a reason")
	}
	kit.Install(t, kit.Build(t, "2.0.0"), program)
	in.WriteConfig(in.Config.WithListener(kit.Listener{Name: "second", Address: local(second)}))
	in.Reload()
	reachable(t, local(second))
	awaitLog(t, in, "the program on disk has no CAP_NET_BIND_SERVICE", "setcap cap_net_bind_service=+ep", program)
	mustBePowerless(t, in, nobody, "")
	fleet.Stop().MustBeClean(t)
}

// fileCapability runs an instance as nobody on a low port, by a right of its
// file, and returns another low port.
func fileCapability(t *testing.T) (in *kit.Instance, program string, second int) {
	t.Helper()
	port := lowPort(t, 443)
	in, program = userInstance(t, "", kit.Config{Listeners: []kit.Listener{{Name: "public", Address: local(port)}}})
	grant(t, program)
	in.Launch()
	in.AwaitReady()
	if r := rights(t, in.PID()); r["CapEff"] != onlyBind {
		t.Fatalf("the supervisor has %s", r["CapEff"])
	}
	mustBePowerless(t, in, nobody, "")
	return in, program, lowPort(t, port+1)
}
