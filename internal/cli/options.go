package cli

import (
	"encoding/json"
	"fmt"
	"net"
	"runtime"
	"slices"
	"time"

	"github.com/holdfast-quic/holdfast/config"
	"github.com/holdfast-quic/holdfast/gateway"
	"github.com/holdfast-quic/holdfast/internal/build"
	"github.com/holdfast-quic/holdfast/shm"
	"github.com/holdfast-quic/holdfast/supervisor"
)

// minProcs is the least GOMAXPROCS of a worker: with a single one, reading
// packets and serving the requests in them can't overlap at all.
const minProcs = 2

// payload is what a worker gets. It holds private keys.
type payload struct {
	Gateway gateway.Options `json:"gateway"`
	// Those of the log that the supervisor writes too.
	LogLevel  string `json:"log_level"`
	LogFormat string `json:"log_format"`
	LogPath   string `json:"log_path"` // where standard error goes
}

// spec turns a configuration into what the supervisor runs. It makes the
// self-signed certificate when the configuration asks for one and there is
// none yet.
func spec(c *config.Config, stateDir string) (*supervisor.Spec, error) {
	data, err := workerPayload(c, stateDir)
	if err != nil {
		return nil, err
	}
	account, err := workerAccount(c)
	if err != nil {
		return nil, err
	}
	geometry := shm.DefaultGeometry()
	geometry.TableEntries = c.Table.Entries
	geometry.Lanes = c.Queue.Lanes
	geometry.LaneBytes = int(c.Queue.LaneSize)
	s := &supervisor.Spec{
		ConfigPath: c.Path(),
		ConfigHash: c.Hash(),
		Payload:    data,
		Workers:    c.WorkerCount(),
		Command:    c.Worker.Command,
		Account:    account,
		MaxProcs:   procs(c.WorkerCount()),
		Steering:   c.Steering,
		Drain: supervisor.DrainSpec{
			Mode:           c.Drain.Mode,
			Timeout:        c.DrainTimeout(),
			StopTimeout:    c.Drain.StopTimeout,
			Grace:          orNever(c.Drain.Grace),
			Window:         c.Drain.GoAwayWindow,
			MaxGenerations: c.Drain.MaxGenerations,
			Overflow:       c.Drain.Overflow,
		},
		Liveness:     orNever(c.Liveness.Timeout),
		ReadyTimeout: c.Start.ReadyTimeout,
		ProbeTimeout: c.Start.ProbeTimeout,
		MinInterval:  c.Reload.MinInterval,
		Probation:    orNever(c.Upgrade.Probation),
		StartTries:   c.Start.Tries,
		Geometry:     geometry,
		ServerID:     c.CID.ServerID,
		NoFile:       uint64(c.Limits.NoFile),
		NoProbe:      !c.Start.Probe,
		PIDFile:      c.PIDFile,
		SocketBuffers: supervisor.SocketBuffers{
			Receive: int(c.Sockets.ReceiveBuffer),
			Send:    int(c.Sockets.SendBuffer),
		},
		Strict: c.Strict,
	}
	for i := range c.Listeners {
		l := &c.Listeners[i]
		s.Listeners = append(s.Listeners, supervisor.ListenerSpec{
			Name: l.Name, Address: l.Address, QUIC: l.UDP(), TCP: l.TCP(), DrainTimeout: l.DrainTimeout,
			Foreign: len(c.Worker.Command) > 0,
		})
		s.IdleTimeout = max(s.IdleTimeout, l.QUIC.IdleTimeout)
	}
	return s, nil
}

// workerPayload is what the built-in gateway gets, or a program of the user's
// own: the configuration.
func workerPayload(c *config.Config, stateDir string) ([]byte, error) {
	if len(c.Worker.Command) > 0 {
		if slices.ContainsFunc(c.Listeners, func(l config.Listener) bool { return l.TLS.SelfSigned }) {
			cert, err := selfSigned(stateDir, hosts(c), time.Now())
			if err != nil {
				return nil, err
			}
			c.SetSelfSigned(cert.Chain, cert.Key)
		}
		return c.Payload(), nil
	}
	options, err := gatewayOptions(c, stateDir)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(payload{Gateway: options, LogLevel: c.Log.Level, LogFormat: c.Log.Format, LogPath: c.Log.Path})
	if err != nil {
		return nil, fmt.Errorf("encode worker payload: %w", err)
	}
	return data, nil
}

// workerAccount is whom the workers run as, if this process can have it so.
func workerAccount(c *config.Config) (*supervisor.Account, error) {
	a := c.Account()
	if a == nil {
		return nil, nil
	}
	account := &supervisor.Account{User: a.User, Group: a.Group, UID: a.UID, GID: a.GID, Groups: a.Groups, Home: a.Home}
	if err := supervisor.CheckAccount(account); err != nil {
		return nil, c.RefuseUser(account.String()+" ("+err.Error()+")", "the user that the supervisor runs as, or none")
	}
	return account, nil
}

// orNever is how the supervisor knows a duration that the configuration turns
// off with 0; its own 0 is the default.
func orNever(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

// procs is the share of the machine's processors that each of so many workers
// gets.
func procs(workers int) int {
	cpus := runtime.NumCPU()
	return min(cpus, max(minProcs, (cpus+workers-1)/workers))
}

// gatewayOptions turns a configuration into what the workers serve.
func gatewayOptions(c *config.Config, stateDir string) (gateway.Options, error) {
	o := gateway.Options{
		Version:   build.Version(),
		AccessLog: gateway.AccessLog{Path: c.AccessLog.Path, Format: c.AccessLog.Format},
	}
	for i := range c.Listeners {
		l, err := gatewayListener(c, &c.Listeners[i], stateDir)
		if err != nil {
			return o, err
		}
		o.Listeners = append(o.Listeners, l)
	}
	for i := range c.Routes {
		o.Routes = append(o.Routes, gatewayRoute(&c.Routes[i]))
	}
	return o, nil
}

func gatewayListener(c *config.Config, l *config.Listener, stateDir string) (gateway.Listener, error) {
	out := gateway.Listener{
		Name:          l.Name,
		Protocols:     l.Protocols,
		AdvertisePort: l.AdvertisePort,
		QUIC: gateway.QUIC{
			IdleTimeout:        l.QUIC.IdleTimeout,
			KeepAlive:          l.QUIC.KeepAlive,
			MaxIncomingStreams: l.QUIC.MaxIncomingStreams,
			AlwaysRetry:        l.QUIC.Retry == config.RetryAlways,
			Allow0RTT:          l.QUIC.Allow0RTT,
		},
	}
	for i := range l.TLS.Certificates {
		chain, key := l.TLS.Certificates[i].PEM()
		out.Certificates = append(out.Certificates, gateway.Certificate{Chain: chain, Key: key})
	}
	if l.TLS.SelfSigned {
		cert, err := selfSigned(stateDir, hosts(c), time.Now())
		if err != nil {
			return out, err
		}
		out.Certificates = append(out.Certificates, cert)
	}
	return out, nil
}

// hosts returns the hosts that the listeners' addresses name.
func hosts(c *config.Config) []string {
	var names []string
	for i := range c.Listeners {
		if host, _, err := net.SplitHostPort(c.Listeners[i].Address); err == nil && host != "" {
			names = append(names, host)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func gatewayRoute(r *config.Route) gateway.Route {
	out := gateway.Route{Path: r.Path}
	switch {
	case r.Respond != nil:
		out.Respond = &gateway.Respond{Status: r.Respond.Status, Body: r.Respond.Body, Headers: r.Respond.Headers}
	case r.Files != nil:
		out.Files = &gateway.Files{Root: r.Files.Root, Example: r.Files.Builtin()}
	case r.Proxy != nil:
		out.Proxy = &gateway.Proxy{Upstreams: r.Proxy.Upstreams}
	case r.Whoami != nil:
		out.Whoami = &gateway.Whoami{}
	case r.Speedtest != nil:
		out.Speedtest = &gateway.Speedtest{MaxBytes: int64(r.Speedtest.MaxBytes)}
	}
	return out
}
