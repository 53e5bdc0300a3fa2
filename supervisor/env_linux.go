package supervisor

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
	"github.com/holdfast-quic/holdfast/internal/notify"
)

func realEnv() *env {
	return &env{
		start:      startChild,
		startCheck: startProgram,
		killGroup:  killGroup,
		find:       adoptProcess,
		sender:     (*lifeline.Conn).Sender,
		bind:       bindSocket,
		tryBind:    tryBindSocket,
		socketUse:  socketUse,
		adopt:      adoptSocket,
		passed:     inherited,
		ipv6:       ipv6Missing,
		files:      openFiles,
		memory:     memoryLimit,
		monotonic:  monotonic,
		wall:       time.Now,
		reapOthers: reapOthers,
		workerOf:   workerOf,
		getpid:     os.Getpid,
		manager:    func() (notify.Environment, error) { return notify.FromEnviron(os.Getenv, os.Getpid()) },
		bootID:     bootID,
		startTime:  startTime,
		look:       time.Second,
		verify:     verifyTimeout,
		settle:     settling,
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

// bootID returns the random number that the kernel makes at each boot.
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "unknown" // without /proc no process can be told from another either
	}
	return strings.TrimSpace(string(id))
}

// startTime reads field 22 of /proc/PID/stat. Together with the boot it tells
// a process from a later one of the same number.
func startTime(pid int) uint64 {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The name, in parentheses, may hold anything, also parentheses.
	const starttime = 22 - 3 // the first field behind the name is the third
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) <= starttime {
		return 0
	}
	n, err := strconv.ParseUint(fields[starttime], 10, 64)
	if err != nil {
		return 0
	}
	return n
}
