package gateway

import (
	"fmt"
	"slices"
	"time"
)

// Protocols that a listener can speak, named as in ALPN.
const (
	ProtocolHTTP3 = "h3"
	ProtocolHTTP2 = "h2"
	ProtocolHTTP1 = "http/1.1"
)

// ProbePath is answered with 204 by the gateway itself, whatever the routes
// say. Probe asks for it.
const ProbePath = "/.holdfast/probe"

// Destinations of the access log that are not files.
const (
	LogOff    = "off"
	LogStderr = "stderr"
)

// Options is everything that a gateway serves. It travels from the supervisor
// to the workers as JSON and holds private keys: it must not be logged.
type Options struct {
	Version   string     `json:"version"` // of the binary, for whoami
	Listeners []Listener `json:"listeners"`
	Routes    []Route    `json:"routes"`
	AccessLog AccessLog  `json:"access_log"`

	// ReopenLogs opens the program's own log files again, beside the access
	// log. Default: nothing to do.
	ReopenLogs func() error `json:"-"`
}

// Listener says what one named listener of the worker speaks.
type Listener struct {
	Name          string        `json:"name"`
	Protocols     []string      `json:"protocols"`
	AdvertisePort int           `json:"advertise_port"` // UDP port in Alt-Svc; 0 = the one that the request came to
	Certificates  []Certificate `json:"certificates"`   // at least one; the first answers unknown server names
	QUIC          QUIC          `json:"quic"`
}

// Certificate is a chain with its key, both PEM.
type Certificate struct {
	Chain []byte `json:"chain"`
	Key   []byte `json:"key"`
}

// QUIC holds the transport settings of HTTP/3. Zero values mean quic-go's.
type QUIC struct {
	IdleTimeout        time.Duration `json:"idle_timeout"`
	KeepAlive          time.Duration `json:"keep_alive"` // 0 = none sent
	MaxIncomingStreams int           `json:"max_incoming_streams"`
	AlwaysRetry        bool          `json:"always_retry"` // validate every address first (RFC 9000, section 8.1.2)
	Allow0RTT          bool          `json:"allow_0rtt"`
}

// Route answers the requests below Path, or at exactly Path when that does not
// end in a slash; the longest match wins. Exactly one of the pointers is set.
type Route struct {
	Path      string     `json:"path"`
	Respond   *Respond   `json:"respond,omitempty"`
	Files     *Files     `json:"files,omitempty"`
	Proxy     *Proxy     `json:"proxy,omitempty"`
	Whoami    *Whoami    `json:"whoami,omitempty"`
	Speedtest *Speedtest `json:"speedtest,omitempty"`
}

// Respond answers with fixed content.
type Respond struct {
	Status  int               `json:"status"` // 0 = 200
	Body    string            `json:"body"`
	Headers map[string]string `json:"headers,omitempty"`
}

// Files serves the directory Root, and nothing outside of it.
type Files struct {
	Root    string `json:"root"`
	Example bool   `json:"example,omitempty"` // in place of Root, a page that is part of the program
}

// Proxy passes requests on to the upstreams in turn.
type Proxy struct {
	Upstreams []string `json:"upstreams"` // http or https URLs, at least one
}

// Whoami answers with the identity of the process, as JSON.
type Whoami struct{}

// Speedtest sends bytes on GET and counts them on POST.
type Speedtest struct {
	MaxBytes int64 `json:"max_bytes"` // of one request; 0 = no limit
}

// AccessLog is the log of requests.
type AccessLog struct {
	Path   string `json:"path"`   // a file, LogStderr or LogOff; empty = LogOff
	Format string `json:"format"` // "json" (default) or "console"
}

func (l *Listener) has(protocol string) bool { return slices.Contains(l.Protocols, protocol) }

func (l *Listener) tcp() bool { return l.has(ProtocolHTTP2) || l.has(ProtocolHTTP1) }

// validate reports the first fault that would keep o from being served.
func (o *Options) validate() error {
	if len(o.Listeners) == 0 {
		return fmt.Errorf("%w: no listener", ErrOptions)
	}
	for i := range o.Listeners {
		l := &o.Listeners[i]
		if !l.has(ProtocolHTTP3) && !l.tcp() {
			return fmt.Errorf("%w: listener %q speaks no known protocol", ErrOptions, l.Name)
		}
		if len(l.Certificates) == 0 {
			return fmt.Errorf("%w: listener %q has no certificate", ErrOptions, l.Name)
		}
	}
	return nil
}
