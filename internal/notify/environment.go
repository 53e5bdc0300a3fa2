package notify

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Environment is what a service manager has set for this process. Its zero
// value is that of a process without one.
type Environment struct {
	// Socket is the address of the manager's socket; "" for none.
	Socket string
	// Watchdog is how long the manager waits for a sign of life; 0 for ever.
	Watchdog time.Duration
	// Store is how many descriptors the manager keeps for this service.
	Store int
	// Wrapped says that the manager started another process, which started
	// this one: the manager does not know who its service is.
	Wrapped bool
}

// FromEnviron reads the environment that getenv shows to the process pid. On
// error what could be read is returned too.
func FromEnviron(getenv func(string) string, pid int) (Environment, error) {
	e := Environment{Socket: getenv("NOTIFY_SOCKET")}
	if e.Socket == "" {
		return Environment{}, nil
	}
	if err := checkAddress(e.Socket); err != nil {
		return Environment{}, err
	}
	e.Wrapped = otherProcess(getenv("SYSTEMD_EXEC_PID"), pid)
	if n, err := strconv.Atoi(getenv("FDSTORE")); err == nil && n > 0 {
		e.Store = n
	}
	text := getenv("WATCHDOG_USEC")
	if text == "" || otherProcess(getenv("WATCHDOG_PID"), pid) {
		return e, nil
	}
	usec, err := strconv.ParseInt(text, 10, 64)
	if err != nil || usec <= 0 || usec > int64((1<<62)/time.Microsecond) {
		return e, fmt.Errorf("WATCHDOG_USEC=%q is no time; the watchdog is not served", text)
	}
	e.Watchdog = time.Duration(usec) * time.Microsecond
	return e, nil
}

// otherProcess reports whether text names a process that is not pid. What is
// not set names nobody.
func otherProcess(text string, pid int) bool {
	return text != "" && text != strconv.Itoa(pid)
}

// maxAddress is what a Unix socket address holds.
const maxAddress = 107

func checkAddress(address string) error {
	switch {
	case strings.HasPrefix(address, "vsock:"):
		return fmt.Errorf("NOTIFY_SOCKET=%s: sockets of a virtual machine's host are for its service manager, not for services", address)
	case address[0] != '/' && address[0] != '@' || len(address) < 2:
		return fmt.Errorf("NOTIFY_SOCKET=%q is neither an absolute path nor an abstract socket", address)
	case len(address) > maxAddress:
		return fmt.Errorf("NOTIFY_SOCKET has %d bytes of at most %d", len(address), maxAddress)
	}
	return nil
}
