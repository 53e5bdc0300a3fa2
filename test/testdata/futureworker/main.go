// Futureworker says hello as a worker of a later time would, named by its
// argument, and prints what it is told.
package main

import (
	"fmt"
	"os"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
	"github.com/holdfast-quic/holdfast/shm"
)

func main() {
	hello := &lifeline.Hello{
		ProtocolMin: lifeline.ProtocolMin, ProtocolMax: lifeline.ProtocolMax,
		ABIMajor: shm.ABIMajor, ABIMinor: shm.ABIMinor, Version: "99.0.0", BuildID: "future", PID: os.Getpid(),
	}
	switch os.Args[1] {
	case "protocol":
		hello.ProtocolMin, hello.ProtocolMax = 98, 99
	case "abi-major":
		hello.ABIMajor = shm.ABIMajor + 1
	case "newer-hello": // says more than this version understands, and can do what it does
		hello.ProtocolMax, hello.ABIMinor = 99, shm.ABIMinor+9
	}
	life, err := lifeline.Inherit()
	if err == nil {
		err = life.Send(&lifeline.Message{Kind: lifeline.KindHello, Hello: hello})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "future worker:", err)
		os.Exit(2)
	}
	m, _, err := life.Recv()
	if err != nil {
		fmt.Fprintln(os.Stderr, "future worker:", err)
		os.Exit(3)
	}
	fmt.Fprintln(os.Stderr, "future worker: answered with", m.Kind)
	if m.Refuse != nil {
		fmt.Fprintln(os.Stderr, "future worker: refused:", m.Refuse.Reason)
	}
	os.Exit(4)
}
