// Hookworker is a worker that starts a program which outlives it, as a hook
// that goes into the background does, and serves nobody.
package main

import (
	"context"
	"crypto/tls"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-quic/holdfast/config"
	"github.com/holdfast-quic/holdfast/worker"
	"github.com/quic-go/quic-go"
)

func main() { worker.Main(serve) }

func serve(ctx context.Context, w *worker.Worker) error {
	conf, err := config.FromPayload(w.Config())
	if err != nil {
		return err
	}
	l := &conf.Listeners[0]
	certs, err := l.KeyPairs()
	if err != nil {
		return err
	}
	tr, err := w.QUIC(l.Name)
	if err != nil {
		return err
	}
	if _, err := tr.Listen(&tls.Config{NextProtos: []string{"hook"}, Certificates: certs}, &quic.Config{}); err != nil {
		return err
	}
	if _, err := w.TCP(l.Name); err != nil {
		return err
	}
	hook := exec.Command("sleep", "600")
	hook.Env = slices.DeleteFunc(os.Environ(), func(e string) bool {
		return strings.HasPrefix(e, "HOLDFAST_TEST_INSTANCE=") // it is to outlive the instance
	})
	hook.Stdout, hook.Stderr = os.Stdout, os.Stderr
	if err := hook.Start(); err != nil {
		return err
	}
	// Where the test looks for it.
	name := filepath.Join(os.Args[1], strconv.Itoa(hook.Process.Pid))
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		return err
	}
	if err := w.Ready(); err != nil {
		return err
	}
	select {
	case <-w.Idle():
	case <-w.Stopping():
	}
	return nil
}
