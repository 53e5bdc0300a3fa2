package test

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/test/kit"
)

// C145: an upgrade keeps the user of the workers, and what rights the
// supervisor has; low ports that come afterwards can be bound.
func TestUpgradeKeepsRights(t *testing.T) {
	needRoot(t)
	port := lowPort(t, 443)
	config := kit.Config{Listeners: []kit.Listener{{Name: "public", Address: local(port)}}}
	for _, c := range []struct {
		name  string
		start func(*testing.T) (*kit.Instance, string)
		check func(*testing.T, *kit.Instance)
	}{
		{"root", func(t *testing.T) (*kit.Instance, string) {
			return installed(t, kit.Options{Config: config.With("user", "nobody")})
		}, func(t *testing.T, in *kit.Instance) { mustBePowerless(t, in, nobody, fmt.Sprint(nobody)) }},
		{"only the bind capability", func(t *testing.T) (*kit.Instance, string) {
			in, program := userInstance(t, "+net_bind_service", config)
			in.Launch()
			in.AwaitReady()
			return in, program
		}, func(t *testing.T, in *kit.Instance) {
			if r := rights(t, in.PID()); r["CapEff"] != onlyBind || r["CapPrm"] != onlyBind {
				t.Errorf("the supervisor has %s", r["CapEff"])
			}
			mustBePowerless(t, in, nobody, "")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			in, program := c.start(t)
			fleet := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 20})
			tcp := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 5, TCP: "h2"})
			kit.Install(t, kit.Build(t, "2.0.0"), program)
			upgrade(t, in)
			running(t, in, "2.0.0", in.PID())
			c.check(t, in)
			second := lowPort(t, port+1)
			in.WriteConfig(in.Config.WithListener(kit.Listener{Name: "second", Address: local(second)}))
			in.Reload()
			c.check(t, in)
			reachable(t, local(second))
			fleet.Stop().MustBeClean(t)
			tcp.Stop().MustBeClean(t)
		})
	}
}

// C049: the new program has not the right to bind low ports that the file of
// the old one gave it. It takes the sockets over and warns; a low port that is
// added then fails with a clear text, and the rest is untouched.
func TestUpgradeWithoutFileCapability(t *testing.T) {
	needRoot(t)
	if lowPortsAreOpen() {
		t.Skip("anybody may bind low ports here")
	}
	in, program, second := fileCapability(t)
	fleet := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 10})
	kit.Install(t, kit.Build(t, "2.0.0"), program)
	r := in.CLI("upgrade")
	if r.Code != 0 || !strings.Contains(r.Stderr, "warning: the new program has no CAP_NET_BIND_SERVICE") {
		t.Fatalf("exit code %d: %s", r.Code, r.Stderr)
	}
	st := running(t, in, "2.0.0", in.PID())
	if r := rights(t, in.PID()); r["CapEff"] != noCapabilities {
		t.Errorf("the supervisor has %s", r["CapEff"])
	}
	current, _ := st.Current()
	in.WriteConfig(in.Config.WithListener(kit.Listener{Name: "second", Address: local(second)}))
	r = in.CLI("reload")
	if r.Code != 1 || !strings.Contains(r.Stderr, fmt.Sprintf("bind udp 127.0.0.1:%d: permission denied", second)) || !strings.Contains(r.Stderr, "setcap cap_net_bind_service=+ep") {
		t.Errorf("exit code %d: %s", r.Code, r.Stderr)
	}
	if in.Current() != current.ID {
		t.Errorf("generation %d is current", in.Current())
	}
	in.WriteConfig(in.Config)
	in.Reload()
	reachable(t, in.Addr())
	fleet.Stop().MustBeClean(t)
}

// Workers of another user outlive their supervisor, and the next one, which has
// the runtime directory to itself, takes them over with their program.
func TestTakeoverOfAnotherUsersWorkers(t *testing.T) {
	needRoot(t)
	in, program := installed(t, kit.Options{Config: kit.Config{}.With("user", "nobody")})
	fleet := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 10})
	in.Reload()
	workers := in.WorkerPIDs(in.Current())
	in.Signal(syscall.SIGKILL)
	<-in.Exited()
	in.Restart()
	if now := in.WorkerPIDs(in.Current()); !slices.Equal(now, workers) {
		t.Errorf("workers %v, once %v", now, workers)
	}
	// One that crashes then is replaced by the program of its generation, as
	// its user.
	kit.Install(t, kit.Build(t, "2.0.0"), program)
	fleet.Stop().MustBeClean(t)
	if err := kit.Signal(workers[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	in.AwaitStatus(10*time.Second, "another worker in its place", func(st kit.Status) error {
		g, _ := st.Current()
		for _, w := range g.Workers {
			if w.PID == workers[0] || w.Phase != "serving" {
				return fmt.Errorf("worker %+v", w)
			}
		}
		return nil
	})
	mustBePowerless(t, in, nobody, fmt.Sprint(nobody))
	if g, _ := in.Status().Current(); g.Version != "1.0.0" {
		t.Errorf("version %s", g.Version)
	}
}
