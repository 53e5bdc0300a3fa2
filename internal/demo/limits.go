package demo

import (
	"fmt"
	"syscall"
)

// spareDescriptors is what a process needs besides its clients' sockets.
const spareDescriptors = 256

// checkDescriptors refuses a demonstration that has to fail.
func checkDescriptors(o Options) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("read the limit of open files: %w", err)
	}
	// A sixth of the clients opens another socket with each reload.
	need := uint64(o.Connections + o.Connections*o.Reloads/6 + spareDescriptors)
	if limit.Cur < need {
		return fmt.Errorf("%d connections need %d open files and the limit is %d: raise it with ulimit -n, or use fewer --connections",
			o.Connections, need, limit.Cur)
	}
	return nil
}
