package kit

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Environment of the processes that the kit starts.
const (
	envRole     = "HOLDFAST_TEST_ROLE"     // which role the test binary plays
	envInstance = "HOLDFAST_TEST_INSTANCE" // marks every process of one instance
	envWorker   = "HOLDFAST_TEST_WORKER"   // file that says how a worker misbehaves
)

// RoleHoldfast is the role of the product's own command line.
const RoleHoldfast = "holdfast"

// Roles maps the name of a role to its main function, which returns the exit
// code.
type Roles map[string]func(args []string) int

// Main plays the role that the environment names, or runs the tests. Call it
// as the only statement of TestMain.
func Main(m *testing.M, roles Roles) {
	name := os.Getenv(envRole)
	if name == "" {
		code := m.Run()
		removeBuilds()
		os.Exit(code)
	}
	role, ok := roles[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "test binary: no role %q\n", name)
		os.Exit(2)
	}
	if name == RoleHoldfast && len(os.Args) > 1 && os.Args[1] == "worker" {
		misbehave()
	}
	os.Exit(role(os.Args[1:]))
}

// Misbehavior of workers, as Instance.Misbehave takes it.
const (
	// WorkerExits: the process exits with code 1 as soon as it starts.
	WorkerExits = "exit"
	// WorkerHangs: the process never says hello.
	WorkerHangs = "hang"
	// WorkerMute: the process says hello and is never ready.
	WorkerMute = "mute"
)

// WorkerExitsAfter: the process never says hello and exits with code 1 that
// long after its start.
func WorkerExitsAfter(d time.Duration) string { return "exit-after " + d.String() }

// WorkerCrashesAfter lets a worker run as it should and exit with code 1
// that long after its start.
func WorkerCrashesAfter(d time.Duration) string { return "crash " + d.String() }

// WorkerStartsSlowly delays a worker's start.
func WorkerStartsSlowly(d time.Duration) string { return "slow " + d.String() }

// misbehave does what the file named by the environment asks for. The file
// may end in "xN": then only the first N workers obey.
func misbehave() {
	data, err := os.ReadFile(os.Getenv(envWorker))
	if err != nil {
		return
	}
	fields := strings.Fields(string(data))
	if len(fields) == 0 {
		return
	}
	if last := fields[len(fields)-1]; strings.HasPrefix(last, "x") {
		n, err := strconv.Atoi(last[1:])
		if err != nil || !claimTurn(n) {
			return
		}
	}
	switch fields[0] {
	case WorkerExits:
		os.Exit(1)
	case WorkerHangs:
		select {}
	case WorkerMute:
		mute()
	case "exit-after":
		if d, err := time.ParseDuration(fields[1]); err == nil {
			time.Sleep(d) // the delay is the misbehavior
		}
		os.Exit(1)
	case "crash":
		if d, err := time.ParseDuration(fields[1]); err == nil {
			time.AfterFunc(d, func() { os.Exit(1) })
		}
	case "slow":
		if d, err := time.ParseDuration(fields[1]); err == nil {
			time.Sleep(d) // the delay is the misbehavior
		}
	}
}

// claimTurn gives the first n callers, in whatever process, a turn.
func claimTurn(n int) bool {
	for i := range n {
		f, err := os.OpenFile(fmt.Sprintf("%s.turn%d", os.Getenv(envWorker), i), os.O_CREATE|os.O_EXCL, 0o600)
		if err == nil {
			f.Close()
			return true
		}
	}
	return false
}
