package supervisor

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-quic/holdfast/internal/notify"
)

func realEnv() *env {
	return &env{
		start:      startChild,
		bind:       bindSocket,
		tryBind:    tryBindSocket,
		socketUse:  socketUse,
		ipv6:       ipv6Missing,
		files:      openFiles,
		memory:     memoryLimit,
		monotonic:  monotonic,
		reapOthers: reapOthers,
		workerOf:   workerOf,
		getpid:     os.Getpid,
		manager:    func() (notify.Environment, error) { return notify.FromEnviron(os.Getenv, os.Getpid()) },
		look:       time.Second,
	}
}

func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0 // can't fail for this clock
	}
	return ts.Nano()
}

// envWorkerOf names, in the environment of each worker, the runtime directory
// of its instance.
const envWorkerOf = "HOLDFAST_WORKER_OF"

// workerOf looks at the environment that a process was started with, which
// other users' processes don't show.
func workerOf(pid int, runtimeDir string) bool {
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	return err == nil && slices.Contains(strings.Split(string(environ), "\x00"), envWorkerOf+"="+runtimeDir)
}
