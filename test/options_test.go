package test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/test/kit"
)

// documentedRestarts returns the keys of which docs/configuration.md says that
// a change takes a restart.
func documentedRestarts(t *testing.T) []string {
	t.Helper()
	doc, err := os.ReadFile("../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	section := ""
	row := regexp.MustCompile("^\\| `([a-z0-9_]+)` ")
	for line := range strings.Lines(string(doc)) {
		if name, ok := strings.CutPrefix(line, "### "); ok {
			section = strings.TrimSpace(name)
		}
		if m := row.FindStringSubmatch(line); m != nil && strings.Contains(line, "A change takes a restart") {
			keys = append(keys, section+"."+m[1])
		}
	}
	return keys
}

// C026: an option that cannot change by reload is refused by its name and the
// word restart, one by one; none is accepted and ignored.
func TestOptionsThatNeedARestartAreRefused(t *testing.T) {
	sections := map[string]map[string]string{
		"table":   {"entries": "65536"},
		"queue":   {"lanes": "16", "lane_size": "256KiB"},
		"sockets": {"receive_buffer": "1MiB", "send_buffer": "1MiB"},
		"cid":     {"server_id": `"0a1b"`},
		"log":     {"path": "stderr", "format": "json"},
	}
	others := map[string]string{
		"table.entries": "131072", "queue.lanes": "32", "queue.lane_size": "512KiB", "sockets.receive_buffer": "256KiB",
		"sockets.send_buffer": "256KiB", "cid.server_id": `"0a1c"`, "log.path": "other.log", "log.format": "console",
	}
	if have, want := slices.Sorted(maps.Keys(others)), slices.Sorted(slices.Values(documentedRestarts(t))); !slices.Equal(have, want) {
		t.Errorf("tried are %v, documented %v", have, want)
	}
	in := startWith(t, with(kit.Config{}, sections))
	f := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 10})
	before := in.Status()
	for _, key := range slices.Sorted(maps.Keys(others)) {
		section, name, _ := strings.Cut(key, ".")
		changed := maps.Clone(sections)
		changed[section] = maps.Clone(sections[section])
		changed[section][name] = others[key]
		in.WriteConfig(with(in.Config, changed))
		r := in.CLI("reload")
		if r.Code == 0 || !containsAll(r.Stderr, key, "restart") {
			t.Errorf("%s: exit code %d: %s", key, r.Code, r.Stderr)
		}
		if now := in.Status(); now.Config.Hash != before.Config.Hash {
			t.Errorf("%s: the refused configuration is in force", key)
		}
	}
	// What there is no option for is not ignored either.
	for _, c := range []struct{ section, yaml, name string }{
		{"sockets", "{reuseport: false}", "reuseport"},
		{"sockets", "{gso: false}", "gso"},
		{"cid", "{length: 8}", "length"},
	} {
		in.WriteConfig(in.Config.With(c.section, c.yaml))
		if r := in.CLI("reload"); r.Code != 3 || !containsAll(r.Stderr, "holdfast.yaml:", c.name) {
			t.Errorf("%s.%s: exit code %d: %s", c.section, c.name, r.Code, r.Stderr)
		}
	}
	in.WriteConfig(in.Config.WithBody("v2"))
	in.Reload()
	if got := body(t, dial(t, in.Client()), "/"); got != "v2" {
		t.Errorf("after the refusals a good reload serves %q", got)
	}
	f.Stop().MustBeClean(t)
	// The restart that was asked for takes it.
	changed := maps.Clone(sections)
	changed["table"] = map[string]string{"entries": others["table.entries"]}
	in.WriteConfig(with(in.Config, changed))
	in.Signal(os.Interrupt)
	in.AwaitExit(kit.StopTimeout)
	in.Restart()
	if got := in.Status().Table.Capacity; got != 131072 {
		t.Errorf("after the restart the table has %d entries", got)
	}
}

// with sets the sections of a configuration, given by their keys.
func with(c kit.Config, sections map[string]map[string]string) kit.Config {
	for name, keys := range sections {
		var parts []string
		for _, k := range slices.Sorted(maps.Keys(keys)) {
			parts = append(parts, k+": "+keys[k])
		}
		c = c.With(name, "{"+strings.Join(parts, ", ")+"}")
	}
	return c
}

// The log has one form, whoever writes a line: here the supervisor at the
// start, and a worker about an upstream that is not there.
func TestWorkersLogInTheFormatOfTheConfiguration(t *testing.T) {
	for _, format := range []string{"json", "console"} {
		t.Run(format, func(t *testing.T) {
			route := fmt.Sprintf("{path: /dead/, proxy: {upstreams: [\"http://127.0.0.1:%d\"]}}", kit.FreePort(t, "127.0.0.1"))
			c := kit.Config{Workers: 1, Routes: []string{route}}.
				With("log", fmt.Sprintf("{format: %s}", format)).With("access_log", "{path: off}")
			in := startWith(t, c)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			if r, err := dial(t, in.Client()).Get(ctx, "/dead/"); err != nil || r.Status != http.StatusBadGateway {
				t.Fatalf("status %d, %v", r.Status, err)
			}
			seen := map[string]bool{"supervisor started": false, "upstream failed": false}
			kit.Eventually(t, 5*time.Second, "both have logged", func() error {
				for line := range strings.Lines(in.Log()) {
					for message := range seen {
						if strings.Contains(line, message) {
							seen[message] = true
							if json.Valid([]byte(line)) != (format == "json") {
								t.Fatalf("line %q", line)
							}
						}
					}
				}
				for message, ok := range seen {
					if !ok {
						return errors.New(message)
					}
				}
				return nil
			})
		})
	}
}
