// Package build says which program this process runs.
//
// Both answers come from the running image itself, never from a file beside
// it, so they stay true after the file on disk was replaced.
package build

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"sync"
)

// version is set by the linker from the Makefile.
var version = "0.1.0-dev"

// Version returns the release that this binary was built as.
func Version() string { return version }

// ID returns a name for the bytes of this binary: 16 hexadecimal digits that
// differ between any two binaries built from different inputs. It is read
// once. A binary without the linker's build ID gives "unknown".
var ID = sync.OnceValue(func() string {
	// The link follows the running image even when its file is gone.
	image, err := elf.Open("/proc/self/exe")
	if err != nil {
		return "unknown"
	}
	defer image.Close()
	section := image.Section(".note.go.buildid")
	if section == nil {
		return "unknown"
	}
	note, err := section.Data()
	if err != nil || len(bytes.TrimRight(note, "\x00")) == 0 {
		return "unknown"
	}
	sum := sha256.Sum256(note)
	return hex.EncodeToString(sum[:8])
})
