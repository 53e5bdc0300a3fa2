package test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/test/kit"
)

const (
	upgradeScript  = "../scripts/upgrade.sh"
	rollbackScript = "../scripts/rollback.sh"
)

// identical fails the test unless both files have the same content.
func identical(t *testing.T, a, b string) {
	t.Helper()
	x, err := os.ReadFile(a)
	if err != nil {
		t.Error(err)
		return
	}
	y, err := os.ReadFile(b)
	if err != nil {
		t.Error(err)
		return
	}
	if !bytes.Equal(x, y) {
		t.Errorf("%s is not the same as %s", a, b)
	}
}

// beside fails the test unless the directory holds just these files.
func beside(t *testing.T, dir string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, e := range entries {
		have = append(have, e.Name())
	}
	if strings.Join(have, " ") != strings.Join(names, " ") {
		t.Errorf("%s has %v, expected %v", dir, have, names)
	}
}

// succeeds fails the test unless a script has ended well.
func succeeds(t *testing.T, in *kit.Instance, r kit.Result) {
	t.Helper()
	if r.Code != 0 {
		t.Fatalf("exit code %d: %s\n%s", r.Code, r.Stderr, in.LogTail(20))
	}
}

// C128: the script does all of an upgrade and the other one takes it back, each
// once, under load; the configuration is that of the running instance.
func TestUpgradeScript(t *testing.T) {
	in, path := installed(t, kit.Options{})
	dir, pid := filepath.Dir(path), in.PID()
	quic := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 40})
	tcp := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 10, TCP: "h2"})
	prober := kit.StartProber(t, in.Client(), 50*time.Millisecond)
	one, two, three := kit.Build(t, "1.0.0"), kit.Build(t, "2.0.0"), kit.Build(t, "3.0.0")

	r := in.Script(upgradeScript, two, "--dry-run")
	if r.Code != 0 || !containsAll(r.Stderr, "1.0.0", "2.0.0", in.ConfigPath, path) {
		t.Errorf("dry run: exit code %d: %s", r.Code, r.Stderr)
	}
	beside(t, dir, "holdfast")
	running(t, in, "1.0.0", pid)

	for range 2 { // the second time there is nothing to do
		succeeds(t, in, in.Script(upgradeScript, two))
		running(t, in, "2.0.0", pid)
		beside(t, dir, "holdfast", "holdfast.previous")
		identical(t, path, two)
		identical(t, path+".previous", one)
	}
	succeeds(t, in, in.Script(upgradeScript, three, "--keep=2", "--canary", "25%", "--soak", "1s"))
	running(t, in, "3.0.0", pid)
	beside(t, dir, "holdfast", "holdfast.previous", "holdfast.previous.2")
	identical(t, path+".previous.2", one)
	for range 2 {
		succeeds(t, in, in.Script(rollbackScript))
		running(t, in, "2.0.0", pid)
		beside(t, dir, "holdfast", "holdfast.previous.2", "holdfast.undone")
		identical(t, path, two)
		identical(t, path+".undone", three)
	}
	if st := in.Status(); st.Counter("upgrades_failed") != 0 || st.Counter("worker_crashes") != 0 {
		t.Errorf("counters %v", st.Counters)
	}
	prober.Stop().MustBeClean(t)
	quic.Stop().MustBeClean(t)
	tcp.Stop().MustBeClean(t)
}

// A canary that is left to people can be ended by the other script.
func TestUpgradeScriptLeavesACanary(t *testing.T) {
	in, path := installed(t, kit.Options{})
	fleet := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 5})
	succeeds(t, in, in.Script(upgradeScript, kit.Build(t, "2.0.0"), "--canary", "50", "--manual"))
	if st := in.Status(); len(st.In("canary")) != 1 || st.Version != "1.0.0" {
		t.Errorf("status %+v", st)
	}
	succeeds(t, in, in.Script(rollbackScript))
	if st := running(t, in, "1.0.0", in.PID()); len(st.In("canary")) != 0 {
		t.Errorf("status %+v", st)
	}
	identical(t, path, kit.Build(t, "1.0.0"))
	fleet.Stop().MustBeClean(t)
}

// The other script puts right what was done by hand in part only.
func TestRollbackScriptWhenHalfIsDone(t *testing.T) {
	in, path := installed(t, kit.Options{})
	fleet := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 5})
	one, two := kit.Build(t, "1.0.0"), kit.Build(t, "2.0.0")
	back := func(what string, half func()) {
		t.Helper()
		succeeds(t, in, in.Script(upgradeScript, two, "--no-watch"))
		half()
		succeeds(t, in, in.Script(rollbackScript))
		running(t, in, "1.0.0", in.PID())
		identical(t, path, one)
		if t.Failed() {
			t.Fatalf("%s: %s", what, in.LogTail(20))
		}
	}
	back("all is to be done", func() {})
	back("the old one serves", func() { succeeds(t, in, in.CLI("rollback")) })
	back("the old one lies there", func() { kit.Install(t, one, path) })
	back("none was kept", func() { os.Remove(path + ".previous") })
	fleet.Stop().MustBeClean(t)
	back("nothing lives of it", func() { awaitOnlyCurrent(t, in, 20*time.Second) })
}

// C134: what is not to be installed is refused before anything changes, or all
// of it is taken back.
func TestUpgradeScriptRefuses(t *testing.T) {
	bad := t.TempDir()
	file := func(name, content string, mode os.FileMode) string {
		p := filepath.Join(bad, name)
		if err := os.WriteFile(p, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		return p
	}
	program, err := os.ReadFile(kit.Build(t, "1.0.0"))
	if err != nil {
		t.Fatal(err)
	}
	plain := file("plain", string(program), 0o600)
	program[18], program[19] = 0xf3, 0 // RISC-V
	// The faults of a bad build go by its name, which is that of the program that
	// it replaces.
	for _, fault := range []string{"exits", "worker-exits", "worker-crashes", "supervisor-exits"} {
		t.Run(fault, func(t *testing.T) {
			dir := t.TempDir()
			path := kit.Install(t, kit.Build(t, "1.0.0"), filepath.Join(dir, fault))
			in := kit.Start(t, kit.Options{
				Program: path, AllowPanics: true,
				Config: kit.Config{}.With("start", "{ready_timeout: 2s}").With("upgrade", "{probation: 5s}"),
			})
			fleet := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 10, Interval: 200 * time.Millisecond})
			prober := kit.StartProber(t, in.Client(), 50*time.Millisecond)
			refused := func(code int, new string, said ...string) {
				t.Helper()
				r := in.Script(upgradeScript, new)
				if r.Code != code || !containsAll(r.Stderr, said...) {
					t.Errorf("exit code %d: %s", r.Code, r.Stderr)
				}
				running(t, in, "1.0.0", in.PID())
				beside(t, dir, fault)
				identical(t, path, kit.Build(t, "1.0.0"))
			}
			refused(1, kit.BadBuild(t, bad, "bad-"+fault), "the program of before again", "version 1.0.0 serves")
			if fault == "exits" {
				refused(1, filepath.Join(bad, "none"), "there is no")
				refused(1, plain, "not executable")
				refused(1, file("script", "#!/bin/sh\nexit 0\n", 0o755), "no program of its own")
				refused(1, file("foreign", string(program), 0o755), "another machine")
				refused(1, "/bin/true", "no holdfast")
				in.WriteRaw("listeners: []\nworkers: none\n")
				refused(3, kit.Build(t, "2.0.0"), "holdfast.yaml:1:", "holdfast.yaml:2:", "nothing was changed")
				in.WriteConfig(in.Config)
				refused(2, "", "which program?")
			}
			fleet.Stop().MustBeClean(t)
			prober.Stop().MustBeClean(t)
		})
	}
}

// Runs at the same time wait for each other; one does the work.
func TestUpgradeScriptTwiceAtOnce(t *testing.T) {
	in, path := installed(t, kit.Options{})
	var runs sync.WaitGroup
	for range 3 {
		runs.Go(func() {
			if r := in.Script(upgradeScript, kit.Build(t, "2.0.0")); r.Code != 0 {
				t.Errorf("exit code %d: %s", r.Code, r.Stderr)
			}
		})
	}
	runs.Wait()
	if st := running(t, in, "2.0.0", in.PID()); st.Counter("upgrades_ok") != 1 {
		t.Errorf("counters %v", st.Counters)
	}
	beside(t, filepath.Dir(path), "holdfast", "holdfast.previous")
}

// A link is turned, and turned back.
func TestUpgradeScriptTurnsALink(t *testing.T) {
	link := filepath.Join(t.TempDir(), "holdfast")
	one, two := kit.Build(t, "1.0.0"), kit.Build(t, "2.0.0")
	if err := os.Symlink(one, link); err != nil {
		t.Fatal(err)
	}
	in := kit.Start(t, kit.Options{Program: link, Config: kit.Config{}.With("upgrade", "{probation: 1s}")})
	leads := func(to, version string) {
		t.Helper()
		if now, err := os.Readlink(link); err != nil || now != to {
			t.Errorf("the link leads to %s, %v", now, err)
		}
		running(t, in, version, in.PID())
	}
	succeeds(t, in, in.Script(upgradeScript, two))
	leads(two, "2.0.0")
	succeeds(t, in, in.Script(rollbackScript))
	leads(one, "1.0.0")
}

// An installation into a tree of its own is run, renewed while it runs, and
// removed; the configuration is nobody's but the user's.
func TestInstallScripts(t *testing.T) {
	root := t.TempDir()
	script := func(name string, args ...string) kit.Result {
		return kit.RunScript(t, name, append(args, "--destdir", root, "--prefix=/usr")...)
	}
	install := func(binary string, args ...string) kit.Result {
		return script("../scripts/install.sh", append(args, "--binary", binary)...)
	}
	lib := filepath.Join(root, "usr/lib/holdfast")
	if r := install(kit.Build(t, "1.0.0"), "--drop-in", "fdstore"); r.Code != 0 {
		t.Fatalf("exit code %d: %s", r.Code, r.Stderr)
	}
	config := filepath.Join(root, "etc/holdfast/holdfast.yaml")
	for _, name := range []string{
		"usr/bin/holdfast", "usr/lib/holdfast/upgrade.sh", "usr/lib/systemd/system/holdfast@.service", "usr/lib/sysusers.d/holdfast.conf",
		"usr/share/man/man8/holdfast-upgrade.8", "usr/share/bash-completion/completions/holdfast",
		"etc/systemd/system/holdfast.service.d/fdstore.conf", "etc/holdfast/holdfast.yaml",
	} {
		if _, err := os.Stat(filepath.Join(root, name)); err != nil {
			t.Error(err)
		}
	}
	program := filepath.Join(root, "usr/bin/holdfast")
	if out, err := exec.Command(program, "check", "--config", config).CombinedOutput(); err != nil {
		t.Errorf("the example: %v: %s", err, out)
	}
	in := kit.Start(t, kit.Options{Program: program, Config: kit.Config{}.With("upgrade", "{probation: 1s}")})
	if err := os.WriteFile(config, []byte("mine\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	fleet := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 5})
	for range 2 {
		if r := install(kit.Build(t, "2.0.0"), "--runtime-dir", in.RuntimeDir); r.Code != 0 {
			t.Fatalf("exit code %d: %s", r.Code, r.Stderr)
		}
		running(t, in, "2.0.0", in.PID())
		identical(t, program+".previous", kit.Build(t, "1.0.0"))
	}
	succeeds(t, in, in.Script(filepath.Join(lib, "rollback.sh")))
	running(t, in, "1.0.0", in.PID())
	fleet.Stop().MustBeClean(t)
	if now, err := os.ReadFile(config); err != nil || string(now) != "mine\n" {
		t.Errorf("the configuration is %q, %v", now, err)
	}

	uninstall := filepath.Join(lib, "uninstall.sh")
	if r := kit.RunScript(t, uninstall, "--destdir", root); r.Code != 1 || !strings.Contains(r.Stderr, "is running") {
		t.Errorf("while it runs: exit code %d: %s", r.Code, r.Stderr)
	}
	in.Stop()
	if r := kit.RunScript(t, uninstall, "--destdir", root); r.Code != 0 {
		t.Errorf("exit code %d: %s", r.Code, r.Stderr)
	}
	var left []string
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			left = append(left, path)
		}
		return err
	})
	if err != nil || len(left) != 1 || left[0] != config {
		t.Errorf("left: %v, %v", left, err)
	}
	for range 2 {
		if r := script("../scripts/uninstall.sh", "--purge"); r.Code != 0 {
			t.Errorf("purge: exit code %d: %s", r.Code, r.Stderr)
		}
		if _, err := os.Stat(config); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("after --purge: %v", err)
		}
	}
}

// Each script says how it is used, and what it does not know it refuses.
func TestScriptsExplainThemselves(t *testing.T) {
	for _, name := range []string{"upgrade", "rollback", "install", "uninstall"} {
		path := "../scripts/" + name + ".sh"
		if r := kit.RunScript(t, path, "--help"); r.Code != 0 || !containsAll(r.Stderr, name+".sh", "Exit codes", "--dry-run", "--help") && name != "install" {
			t.Errorf("%s: exit code %d: %s", name, r.Code, r.Stderr)
		}
		if r := kit.RunScript(t, path, "--frobnicate"); r.Code != 2 || !strings.Contains(r.Stderr, "--frobnicate") {
			t.Errorf("%s: exit code %d: %s", name, r.Code, r.Stderr)
		}
	}
}
