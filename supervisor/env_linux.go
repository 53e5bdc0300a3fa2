package supervisor

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

func realEnv() *env {
	return &env{
		start:      startChild,
		bind:       bindSocket,
		tryBind:    tryBindSocket,
		ipv6:       ipv6Missing,
		files:      openFiles,
		memory:     memoryLimit,
		monotonic:  monotonic,
		reapOthers: reapOthers,
		sameBinary: sameBinary,
		getpid:     os.Getpid,
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

// sameBinary reports whether a process runs the image that this one runs.
func sameBinary(pid int) bool {
	own, err := os.Stat("/proc/self/exe")
	if err != nil {
		return false
	}
	other, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid))
	return err == nil && os.SameFile(own, other)
}
