package kit

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Config writes the YAML of an instance. The zero value, as Start completes
// it, is one listener "public" with all protocols on a free port of
// 127.0.0.1, two workers, and the kit's routes.
type Config struct {
	Listeners []Listener        // nil: one, see above
	Workers   int               // processes per generation; 0: 2
	Sections  map[string]string // YAML of further top-level keys, for example "drain": "{timeout: 5s}"
	Body      string            // what GET / answers; marks a version of the configuration
	Routes    []string          // YAML of further routes, one item each
}

// Listener is one entry of the listeners.
type Listener struct {
	Name      string
	Address   string   // host:port
	Protocols []string // nil: h3, h2, http/1.1
	TLS       string   // YAML; "": {self_signed: true}
	QUIC      string   // YAML; "": {allow_0rtt: true}
	Extra     string   // further lines of YAML "key: value"
}

// With returns a copy with one more section.
func (c Config) With(section, yaml string) Config {
	c.Sections = maps.Clone(c.Sections)
	if c.Sections == nil {
		c.Sections = map[string]string{}
	}
	c.Sections[section] = yaml
	return c
}

// WithBody returns a copy that answers GET / with body.
func (c Config) WithBody(body string) Config {
	c.Body = body
	return c
}

// WithWorkers returns a copy with n workers per generation.
func (c Config) WithWorkers(n int) Config {
	c.Workers = n
	return c
}

// WithListener returns a copy with one more listener.
func (c Config) WithListener(l Listener) Config {
	c.Listeners = append(slices.Clone(c.Listeners), l)
	return c
}

// YAML returns the file's content. files is the directory that /files/ serves.
func (c Config) YAML(files string) string {
	var b strings.Builder
	b.WriteString("listeners:\n")
	for _, l := range c.Listeners {
		protocols, tls, quic := l.Protocols, l.TLS, l.QUIC
		if protocols == nil {
			protocols = []string{"h3", "h2", "http/1.1"}
		}
		if tls == "" {
			tls = "{self_signed: true}"
		}
		fmt.Fprintf(&b, "  - name: %s\n    address: %q\n    protocols: [%s]\n    tls: %s\n",
			l.Name, l.Address, strings.Join(protocols, ", "), tls)
		if quic == "" && slices.Contains(protocols, "h3") {
			quic = "{allow_0rtt: true}"
		}
		if quic != "" {
			fmt.Fprintf(&b, "    quic: %s\n", quic)
		}
		for line := range strings.Lines(l.Extra) {
			fmt.Fprintf(&b, "    %s\n", strings.TrimSpace(line))
		}
	}
	fmt.Fprintf(&b, "workers: %d\n", c.Workers)
	if _, ok := c.Sections["access_log"]; !ok {
		b.WriteString("access_log: {path: off}\n") // the log of a test is for what went wrong
	}
	for _, name := range slices.Sorted(maps.Keys(c.Sections)) {
		fmt.Fprintf(&b, "%s: %s\n", name, c.Sections[name])
	}
	fmt.Fprintf(&b, "routes:\n  - {path: /, respond: {status: 200, body: %q}}\n", c.Body)
	b.WriteString("  - {path: " + WhoamiPath + ", whoami: {}}\n  - {path: /speedtest, speedtest: {max_bytes: 1GiB}}\n")
	fmt.Fprintf(&b, "  - {path: /files/, files: {root: %q}}\n", files)
	for _, r := range c.Routes {
		fmt.Fprintf(&b, "  - %s\n", r)
	}
	return b.String()
}

// FreePort returns a port of the address that is free for UDP and TCP. It lies
// below the range that Linux takes the ports of clients from, so it stays free
// until somebody asks for it by its number.
func FreePort(t testing.TB, ip string) int {
	t.Helper()
	for range 100 {
		port := 15000 + rand.IntN(17000)
		u, err := net.ListenPacket("udp", net.JoinHostPort(ip, strconv.Itoa(port)))
		if err != nil {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort(ip, strconv.Itoa(port)))
		u.Close()
		if err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no port is free for both UDP and TCP")
	return 0
}

// writeFile replaces a file by rename, so a reader never sees half of it.
func writeFile(path, content string) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	if _, err = tmp.WriteString(content); err == nil {
		err = tmp.Close()
	}
	if err == nil {
		err = os.Chmod(tmp.Name(), 0o644) // the instance may run as another user
	}
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	return err
}
