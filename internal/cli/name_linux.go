package cli

import (
	"os"
	"path/filepath"
	"strings"
)

// nameProcess gives this process its name in process lists when the kernel has
// taken the number of a descriptor for it: a program whose file was replaced is
// run by way of one.
func nameProcess() {
	const comm = "/proc/self/comm"
	name, err := os.ReadFile(comm)
	if err != nil || strings.Trim(strings.TrimSpace(string(name)), "0123456789") != "" {
		return
	}
	_ = os.WriteFile(comm, []byte(filepath.Base(os.Args[0])), 0) // it is for people only
}
