package notify

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Assignments whose value is fixed.
const (
	// Ready ends the start, and each reload.
	Ready = "READY=1"
	// Stopping says that the service has begun to end.
	Stopping = "STOPPING=1"
	// Watchdog is a sign of life.
	Watchdog = "WATCHDOG=1"
)

// Reloading says that a reload has begun at that time of CLOCK_MONOTONIC in
// nanoseconds. Without the time a manager that asked for the reload itself
// takes the message for that of an earlier one, and waits for ever.
func Reloading(monotonic int64) string {
	return fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", monotonic/int64(time.Microsecond))
}

// Status is a line for people. What would break the message is left out.
func Status(text string) string {
	return "STATUS=" + strings.Map(func(r rune) rune {
		if r == '\n' || r == '\r' || r == 0 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
}

// ExtendTimeout asks that the start, reload or stop under way is not given up
// within d from now.
func ExtendTimeout(d time.Duration) string {
	return "EXTEND_TIMEOUT_USEC=" + strconv.FormatInt(d.Microseconds(), 10)
}

// MainPID names the process that the manager is to take for the service.
func MainPID(pid int) string { return "MAINPID=" + strconv.Itoa(pid) }

// Errno is the number of the error that ended the service.
func Errno(number int) string { return "ERRNO=" + strconv.Itoa(number) }

// maxName is the longest name of a stored descriptor.
const maxName = 255

// ValidName reports whether the store takes a descriptor under that name:
// printable ASCII without a colon, which separates names in LISTEN_FDNAMES.
func ValidName(name string) bool {
	if name == "" || len(name) > maxName {
		return false
	}
	for _, c := range []byte(name) {
		if c <= ' ' || c >= 0x7f || c == ':' {
			return false
		}
	}
	return true
}

// Store asks the manager to keep the descriptor that goes with the message.
// It is not watched: the manager would drop a socket that has an error
// pending, which to a UDP socket is nothing special.
//
// Preconditions: ValidName(name).
func Store(name string) string { return "FDSTORE=1\nFDPOLL=0\nFDNAME=" + name }

// Unstore asks the manager to close every descriptor that it keeps under the
// name.
//
// Preconditions: ValidName(name).
func Unstore(name string) string { return "FDSTOREREMOVE=1\nFDNAME=" + name }
