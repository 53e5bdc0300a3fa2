// Command builds is the product with a fault, which the name of the file tells.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/holdfast-quic/holdfast/internal/cli"
	"github.com/holdfast-quic/holdfast/shm"
	"github.com/holdfast-quic/holdfast/worker"
)

func main() {
	role := ""
	if len(os.Args) > 1 {
		role = os.Args[1]
	}
	fault(filepath.Base(os.Args[0]), role)
	os.Exit(cli.Main(os.Args[1:]))
}

// soon is when what crashes soon crashes.
const soon = 300 * time.Millisecond

func fault(name, role string) {
	switch name + " " + role {
	case "exits verify":
		os.Exit(1)
	case "exits-soon verify":
		time.Sleep(soon) // the delay is the fault
		os.Exit(1)
	case "hangs verify", "worker-hangs worker", "supervisor-hangs run":
		select {}
	case "no-verdict verify":
		os.Exit(0)
	case "other-abi verify":
		answer(map[string]any{"abi_major": shm.ABIMajor + 1, "state_oldest": 1, "state_newest": 1})
	case "other-state verify":
		answer(map[string]any{"abi_major": shm.ABIMajor, "state_oldest": 98, "state_newest": 99})
	case "worker-exits worker":
		os.Exit(1)
	case "worker-crashes worker": // once it serves, again and again
		time.AfterFunc(2*soon, func() { os.Exit(2) })
	case "probe-fails worker":
		os.Exit(worker.Run(worker.Options{Version: "deaf"}, func(ctx context.Context, w *worker.Worker) error {
			if err := w.Ready(); err != nil {
				return err
			}
			<-ctx.Done()
			return nil
		}))
	case "supervisor-exits run":
		os.Exit(1)
	case "supervisor-panics run":
		panic("as it is meant to")
	case "supervisor-crashes run":
		time.AfterFunc(soon, func() { panic("as it is meant to") })
	}
}

// answer gives a verdict on descriptor 5.
func answer(verdict map[string]any) {
	verdict["version"], verdict["build_id"], verdict["spec"] = "99.0.0", "other", map[string]any{}
	if err := json.NewEncoder(os.NewFile(5, "verdict")).Encode(verdict); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}
