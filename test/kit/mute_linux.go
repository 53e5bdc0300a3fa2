package kit

import (
	"os"
	"runtime"

	"github.com/holdfast-quic/holdfast/internal/lifeline"
)

// mute plays a worker that says hello, takes what it is given and never
// becomes ready. It ends with its supervisor, or when that ends it.
func mute() {
	conn, err := lifeline.Inherit()
	if err != nil {
		os.Exit(1)
	}
	hello := &lifeline.Message{Kind: lifeline.KindHello, Hello: &lifeline.Hello{
		ProtocolMin: lifeline.ProtocolMin, ProtocolMax: lifeline.ProtocolMax,
		ABIMajor: 1, PID: os.Getpid(), Version: "mute", BuildID: "mute",
	}}
	if err := conn.Send(hello); err != nil {
		os.Exit(1)
	}
	var keep []*os.File // what a worker was given stays open while it lives
	for {
		_, files, err := conn.Recv()
		if err != nil {
			runtime.KeepAlive(keep)
			os.Exit(1)
		}
		keep = append(keep, files...)
	}
}
