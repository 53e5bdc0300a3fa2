package kit

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Namespace is a network namespace with its own loopback interface.
type Namespace struct {
	t    testing.TB
	name string
}

// NewNamespace makes a network namespace that lives until the test ends. It
// skips the test where that is not allowed.
func NewNamespace(t testing.TB, label string) *Namespace {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	n := &Namespace{t: t, name: fmt.Sprintf("hf%d%s", os.Getpid(), label)}
	if out, err := exec.Command("ip", "netns", "add", n.name).CombinedOutput(); err != nil {
		t.Skipf("network namespaces are not to be had here: %v: %s", err, out)
	}
	t.Cleanup(func() { exec.Command("ip", "netns", "del", n.name).Run() })
	n.IP("link set lo up")
	return n
}

// IP runs `ip` with the arguments inside the namespace.
func (n *Namespace) IP(args string) {
	n.t.Helper()
	n.Run(append([]string{"ip"}, strings.Fields(args)...)...)
}

// Run runs a command inside the namespace.
func (n *Namespace) Run(line ...string) {
	n.t.Helper()
	line = append(n.prefix(), line...)
	if out, err := exec.Command(line[0], line[1:]...).CombinedOutput(); err != nil {
		n.t.Fatalf("%s: %v: %s", strings.Join(line, " "), err, out)
	}
}

func (n *Namespace) prefix() []string { return []string{"ip", "netns", "exec", n.name} }

// Connect joins two namespaces by a veth pair with the given addresses
// (with prefix length), the first of each list being of n.
func (n *Namespace) Connect(other *Namespace, addrs, otherAddrs []string) {
	n.t.Helper()
	a, b := n.name[len(n.name)-3:]+"a", other.name[len(other.name)-3:]+"b"
	n.IP(fmt.Sprintf("link add %s type veth peer name %s netns %s", a, b, other.name))
	for _, x := range addrs {
		n.IP(fmt.Sprintf("addr add %s dev %s nodad", x, a))
	}
	for _, x := range otherAddrs {
		other.IP(fmt.Sprintf("addr add %s dev %s nodad", x, b))
	}
	n.IP("link set " + a + " up")
	other.IP("link set " + b + " up")
}

// Do runs f on a thread inside the namespace. Sockets that f opens belong to
// the namespace for as long as they live; f must not start goroutines that
// open others.
func (n *Namespace) Do(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		ns, err := os.Open("/run/netns/" + n.name)
		if err != nil {
			result <- err
			return
		}
		defer ns.Close()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			result <- fmt.Errorf("enter namespace %s: %w", n.name, err)
			return
		}
		result <- f()
	}()
	return <-result
}
