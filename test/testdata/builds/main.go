// Command builds is the product with a fault, which the name of the file tells.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
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
	name, args := filepath.Base(os.Args[0]), os.Args[1:]
	fault(name, role)
	if role == "run" && os.Getenv("HOLDFAST_EXEC") != "" {
		args = successor(name, slices.Clone(args))
	}
	os.Exit(cli.Main(args))
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
	}
}

// successor fails only once it is in the place of a supervisor.
func successor(name string, args []string) []string {
	switch name {
	case "successor-fails":
		args = append(args, "--no-such-flag")
	case "successor-stalls":
		fifo := filepath.Join(os.TempDir(), fmt.Sprint("stall", os.Getpid()))
		if err := syscall.Mkfifo(fifo, 0o600); err != nil {
			panic(err)
		}
		time.AfterFunc(soon, func() { os.Remove(fifo) })
		for i, arg := range args {
			if arg == "--config" {
				args[i+1] = fifo // whoever opens it waits for a writer
			}
		}
	case "successor-crashes":
		time.AfterFunc(soon, func() { panic("as it is meant to") })
	}
	return args
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
