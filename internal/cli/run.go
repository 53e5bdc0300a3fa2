package cli

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/holdfast-quic/holdfast/config"
	"github.com/holdfast-quic/holdfast/gateway"
	"github.com/holdfast-quic/holdfast/internal/admin"
	"github.com/holdfast-quic/holdfast/internal/build"
	"github.com/holdfast-quic/holdfast/supervisor"
)

func (a *app) runCommand() *cobra.Command {
	var path string
	var anyListenPID bool
	c := &cobra.Command{
		Use:   "run [--config FILE]",
		Short: "Run the supervisor in the foreground",
		Long: "Runs the supervisor, which starts the workers and never touches a packet itself. Without --config it serves a built-in " +
			"example on 127.0.0.1:8443 with a self-signed certificate.\n\n" +
			"Signals: HUP reloads the configuration, USR1 opens the log files again, USR2 upgrades to the program that lies on disk now, QUIT stops gracefully (a second one fast), " +
			"TERM and INT stop fast.",
		Example: "  holdfast run\n  holdfast run --config /etc/holdfast/holdfast.yaml --name edge",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.run(cmd.Context(), path, anyListenPID) },
	}
	c.Flags().StringVarP(&path, "config", "c", "", "configuration file (default: the built-in example)")
	c.Flags().BoolVar(&anyListenPID, "any-listen-pid", false, "take passed sockets even if LISTEN_PID names another process, such as a container's init")
	a.instance.runtimeFlags(c)
	a.instance.stateFlag(c)
	return c
}

func (a *app) run(ctx context.Context, path string, anyListenPID bool) error {
	if err := a.instance.resolve(); err != nil {
		return err
	}
	source := &source{path: path, people: isTerminal(a.err)}
	c, err := source.load()
	if err != nil {
		return err
	}
	if err := prepareLogs(c); err != nil {
		return err
	}
	log, err := newLogger(logOptions{Level: c.Log.Level, Path: c.Log.Path, Format: c.Log.Format})
	if err != nil {
		return err
	}
	source.log = log
	source.stateDir = a.instance.stateDir
	s, err := supervisor.New(supervisor.Options{
		Name:       a.instance.name,
		RuntimeDir: a.instance.runtimeDir,
		StateDir:   a.instance.stateDir,
		Version:    build.Version(),
		BuildID:    build.ID(),
		Load:       source.spec,
		Verify:     a.verifyArgs(path),
		Rehearse:   os.Args[1:],
		Probe: func(ctx context.Context, t supervisor.ProbeTarget) error {
			if t.Foreign {
				return gateway.ProbeHandshake(ctx, t.Conn, t.Addr, t.Listener)
			}
			return gateway.Probe(ctx, t.Conn, t.Addr, t.Listener)
		},
		Log:        log.Logger,
		ReopenLogs: source.reopenLogs,
		Signals:    a.signals,
		Resume:     a.resume,

		AnyListenPID: anyListenPID,
	})
	if err != nil {
		return err
	}
	if supervisor.Rehearsing() {
		return supervisor.Verify(build.Version(), build.ID(), source.spec)
	}
	ctx, cancel := context.WithCancel(ctx)
	greeted := make(chan struct{})
	go func() {
		defer close(greeted)
		if a.resume != nil {
			return // it was said when this process began
		}
		a.greet(ctx, c, log.Logger)
	}()
	err = s.Run(ctx)
	cancel()
	<-greeted
	return err
}

// greet says what to try once the first generation serves.
func (a *app) greet(ctx context.Context, c *config.Config, log *zap.Logger) {
	client := admin.New(a.instance.socket())
	defer client.Close()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s, err := client.Status(ctx)
		if err != nil || s.Current() == nil {
			continue
		}
		lines := a.suggestions(c)
		if !isTerminal(a.err) {
			log.Info("serving", zap.Strings("try", lines))
			return
		}
		fmt.Fprintf(a.err, "\nServing. In another terminal, try:\n\n    %s\n\n", strings.Join(lines, "\n    "))
		return
	}
}

// suggestions are commands to try on this instance.
func (a *app) suggestions(c *config.Config) []string {
	var lines []string
	l := &c.Listeners[0]
	url := "https://" + reachable(l.Address)
	if len(c.Worker.Command) == 0 {
		url += curlPath(c)
	}
	own := len(c.Worker.Command) > 0 // speaks nobody knows what
	if l.TCP() && !own {
		lines = append(lines, "curl -k "+url)
	}
	if l.UDP() && !own {
		lines = append(lines, "curl -k --http3-only "+url)
	}
	flags := ""
	if dir, err := defaultRuntimeDir(a.instance.name); err != nil || dir != a.instance.runtimeDir {
		flags = " --runtime-dir " + a.instance.runtimeDir
	} else if a.instance.name != "default" {
		flags = " --name " + a.instance.name
	}
	self := os.Args[0]
	return append(lines, self+" reload"+flags, self+" status"+flags)
}

func curlPath(c *config.Config) string {
	for i := range c.Routes {
		if c.Routes[i].Whoami != nil {
			return c.Routes[i].Path
		}
	}
	return c.Routes[0].Path
}

// reachable replaces "all addresses" by one that a client can use.
func reachable(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	if ip := net.ParseIP(host); host == "" || (ip != nil && ip.IsUnspecified()) {
		host = "localhost"
	}
	return net.JoinHostPort(host, port)
}
