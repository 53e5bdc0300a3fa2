package test

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/test/kit"
)

// C010: who is nearly done when the drain ends may finish, in a grace that is
// part of the limit; who is told goodbye and has nothing to do goes at once.
func TestResponsesAreFinishedInTheGrace(t *testing.T) {
	const rate, goodbye, limit = 32 << 10, 4 * time.Second, 8 * time.Second
	in := startWith(t, kit.Config{Workers: 1}.With("drain", fmt.Sprintf("{timeout: %v, grace: %v, stop_timeout: 1s}", limit, limit-goodbye)))
	sum := in.WriteFile("big", rate*11/2) // five and a half seconds
	o := in.Client()
	o.StreamWindow = 16 << 10
	busy, idle := dial(t, o), dial(t, in.Client())
	whoami(t, idle)
	download := kit.StartDownload(t, busy, "/files/big", rate)
	download.AwaitBytes(t, 1, 5*time.Second)
	begin := time.Now()
	in.Reload()
	if cause := awaitLost(t, idle, limit); !orderly(cause) {
		t.Errorf("idle connection ended by %s", cause)
	}
	if took := time.Since(begin); took < goodbye-500*time.Millisecond {
		t.Errorf("idle connection ended after %v", took)
	}
	download.MustBe(t, sum, limit)
	if cause := awaitLost(t, busy, limit); !orderly(cause) {
		t.Errorf("busy connection ended by %s", cause)
	}
	awaitOnlyCurrent(t, in, 2*time.Second)
	if took := time.Since(begin); took > limit+2*time.Second {
		t.Errorf("the old generation was gone after %v", took)
	}
}

// C114: a start takes over the worker that a killed supervisor has left behind,
// and its client notices nothing.
func TestStartTakesOverItsOwnOrphan(t *testing.T) {
	in := start(t, 1)
	const size, rate = 1 << 20, 512 << 10
	sum := in.WriteFile("big", size)
	o := in.Client()
	o.StreamWindow = 16 << 10
	download := kit.StartDownload(t, dial(t, o), "/files/big", rate)
	download.AwaitBytes(t, 1, 5*time.Second)
	orphan := in.WorkerPIDs()
	in.Signal(syscall.SIGKILL)
	in.AwaitExit(5 * time.Second)
	in.Restart()
	if now := in.WorkerPIDs(); !slices.Equal(now, orphan) {
		t.Errorf("workers %v became %v", orphan, now)
	}
	download.MustBe(t, sum, 20*time.Second)
	whoami(t, dial(t, in.Client()))
}
