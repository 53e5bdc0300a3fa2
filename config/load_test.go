package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// minimal is the shortest valid configuration, seven lines long.
const minimal = `listeners:
- name: a
  address: "127.0.0.1:8443"
  tls: {self_signed: true}
routes:
- path: /
  whoami:
`

func mustParse(t *testing.T, text string) *Config {
	t.Helper()
	c, err := Parse("gw.yaml", []byte(text))
	if err != nil {
		t.Fatalf("%v\nin\n%s", err, text)
	}
	return c
}

// faultsOf returns the faults of a text, without the file name.
func faultsOf(t *testing.T, name, text string) []string {
	t.Helper()
	c, err := Parse(name, []byte(text))
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[Errors](err); !ok || c != nil {
		t.Fatalf("not Errors alone: %T, %v", err, c)
	}
	lines := strings.Split(err.Error(), "\n")
	for i, l := range lines {
		rest, ok := strings.CutPrefix(l, name+":")
		if !ok {
			t.Fatalf("no file name in %q", l)
		}
		lines[i] = strings.TrimPrefix(rest, " ")
	}
	return lines
}

func check(t *testing.T, text string, want ...string) {
	t.Helper()
	have := faultsOf(t, "gw.yaml", text)
	if strings.Join(have, "\n") != strings.Join(want, "\n") {
		t.Errorf("have\n  %s\nwant\n  %s\nin\n%s", strings.Join(have, "\n  "), strings.Join(want, "\n  "), text)
	}
}

const aDuration = `expected a duration from 1s to 720h, such as "30s"`

// TestFaultTexts holds one case for each kind of fault that a single key can
// have. The text begins in line 8, after minimal.
func TestFaultTexts(t *testing.T) {
	for _, tc := range [][2]string{
		{"drain: {timout: 1h}", `8:9: drain.timout: found the unknown key "timout", expected a known key; did you mean "timeout"?`},
		{"drain: {shade: 1h}", `8:9: drain.shade: found the unknown key "shade", expected mode, timeout, stop_timeout, grace, goaway_window, max_generations, overflow or follow`},
		{"drain:\n  mode: hold\n  mode: goaway", `10:3: drain.mode: found the key "mode" a second time, expected it once only (first at 9:3)`},
		{"drain: 1h", `8:8: drain: found "1h", expected a mapping with the keys mode, timeout, stop_timeout, grace, goaway_window, max_generations, overflow and follow`},
		{"drain: [1h]", `8:8: drain: found a list, expected a mapping with the keys mode, timeout, stop_timeout, grace, goaway_window, max_generations, overflow and follow`},
		{"drain: {timeout: 30}", `8:18: drain.timeout: found 30, ` + aDuration},
		{"drain: {timeout: 1d}", `8:18: drain.timeout: found "1d", ` + aDuration},
		{"drain: {timeout: -1h}", `8:18: drain.timeout: found "-1h", ` + aDuration},
		{"drain: {timeout: 1000h}", `8:18: drain.timeout: found "1000h", ` + aDuration},
		{"drain: {timeout: }", `8:17: drain.timeout: found nothing, ` + aDuration},
		{"drain: {timeout: {}}", `8:18: drain.timeout: found a mapping, ` + aDuration},
		{"drain: {timeout: true}", `8:18: drain.timeout: found true, ` + aDuration},
		{"drain: {goaway_window: 25h}", `8:24: drain.goaway_window: found "25h", expected 0 or a duration from 1ms to 24h, such as "30s"`},
		{"drain: {mode: fast}", `8:15: drain.mode: found "fast", expected hold or goaway`},
		{"drain: {mode: 1}", `8:15: drain.mode: found 1, expected hold or goaway, in quotes`},
		{"drain: {max_generations: 0}", `8:26: drain.max_generations: found 0, expected a whole number from 1 to 64`},
		{"drain: {max_generations: 1.5}", `8:26: drain.max_generations: found 1.5, expected a whole number from 1 to 64`},
		{"drain: {max_generations: \"5\"}", `8:26: drain.max_generations: found "5", expected a whole number from 1 to 64`},
		{"drain: {max_generations: 010}", `8:26: drain.max_generations: found 010, expected a whole number from 1 to 64`},
		{"drain: {max_generations: 0x10}", `8:26: drain.max_generations: found 0x10, expected a whole number from 1 to 64`},
		{"drain: {max_generations: 99999999999999999999}", `8:26: drain.max_generations: found "99999999999999999999", expected a whole number from 1 to 64`},
		{"drain: {overflow: apply}", `8:19: drain.overflow: found "apply", which is not available in this version; use wait or evict`},
		{"drain: {follow: true}", `8:17: drain.follow: found true, which is not available in this version; use false`},
		{"drain: {follow: yes}", `8:17: drain.follow: found "yes", expected true or false`},
		{"reload: {mode: auto}", `8:16: reload.mode: found "auto", which is not available in this version; use generation`},
		{"steering: kernel", `8:11: steering: found "kernel", which is not available in this version; use auto or queue`},
		{"steering: ebpf", `8:11: steering: found "ebpf", expected auto or queue`},
		{"workers: 0", `8:10: workers: found 0, expected auto or a whole number from 1 to 256`},
		{"workers: 257", `8:10: workers: found 257, expected auto or a whole number from 1 to 256`},
		{"workers: many", `8:10: workers: found "many", expected auto or a whole number from 1 to 256`},
		{"start: {probe: \"true\"}", `8:16: start.probe: found "true", expected true or false`},
		{"start: {tries: 0}", `8:16: start.tries: found 0, expected a whole number from 1 to 1000`},
		{"table: {entries: 5000}", `8:18: table.entries: found 5000, expected a whole number, a power of two, from 4Ki to 64Mi, such as "64Ki"`},
		{"table: {entries: 128Mi}", `8:18: table.entries: found "128Mi", expected a whole number, a power of two, from 4Ki to 64Mi, such as "64Ki"`},
		{"table: {entries: 1MiB}", `8:18: table.entries: found "1MiB", expected a whole number, a power of two, from 4Ki to 64Mi, such as "64Ki"`},
		{"queue: {lanes: 1}", `8:16: queue.lanes: found 1, expected a whole number from 2 to 256`},
		{"queue: {lanes: 256, lane_size: 2MiB}", `8:8: queue: found 512MiB of lanes per queue, expected at most 256MiB`},
		{"queue: {lane_size: 64KiB}", `8:20: queue.lane_size: found "64KiB", expected a size, a power of two, from 128KiB to 16MiB, such as "1MiB"`},
		{"sockets: {receive_buffer: 7MB}", `8:27: sockets.receive_buffer: found "7MB", expected a size from 64KiB to 1GiB, such as "1MiB"`},
		{"sockets: {send_buffer: 1.5MiB}", `8:24: sockets.send_buffer: found "1.5MiB", expected a size from 64KiB to 1GiB, such as "1MiB"`},
		{"sockets: {send_buffer: 9223372036854775807GiB}", `8:24: sockets.send_buffer: found "9223372036854775807GiB", expected a size from 64KiB to 1GiB, such as "1MiB"`},
		{"cid: {server_id: xyz}", `8:18: cid.server_id: found "xyz", expected 1 to 3 bytes in hexadecimal, such as "0a1b"`},
		{"cid: {server_id: \"01020304\"}", `8:18: cid.server_id: found "01020304", expected 1 to 3 bytes in hexadecimal, such as "0a1b"`},
		{"limits: {nofile: 100}", `8:18: limits.nofile: found 100, expected a whole number from 256 to 16777216`},
		{"log: {level: loud}", `8:14: log.level: found "loud", expected debug, info, warn or error`},
		{"log: {path: \"\"}", `8:13: log.path: found "", expected stderr or a file name`},
		{"access_log: {path: 5}", `8:20: access_log.path: found 5, expected stderr, off or a file name, in quotes`},
		{"pid_file: []", `8:11: pid_file: found a list (a text that starts with [ needs quotes), expected a file name`},
		{"strict: 1", `8:9: strict: found 1, expected true or false`},
		{"strict: !!bool true", `8:9: strict: found the tag !!bool, expected a value without a tag`},
		{"strict: *nothing", `8:9: strict: found the alias *nothing, expected an alias of an anchor that is complete before it`},
		{"<<: {}", `8:1: "<<": found the unknown key "<<", expected listeners, workers, worker, user, group, steering, routes, drain, reload, upgrade, start, liveness, table, queue, sockets, cid, limits, access_log, log, pid_file or strict`},
		{"5: x", `8:1: 5: found the unknown key "5", expected listeners, workers, worker, user, group, steering, routes, drain, reload, upgrade, start, liveness, table, queue, sockets, cid, limits, access_log, log, pid_file or strict`},
		{"\"a\\nb\": x", `8:1: "a\nb": found the unknown key "a\nb", expected listeners, workers, worker, user, group, steering, routes, drain, reload, upgrade, start, liveness, table, queue, sockets, cid, limits, access_log, log, pid_file or strict`},
		{"---\nstrict: true", `9:1: found a second document, expected one document`},
		{"drain: {mode: hold", `8:8: found a syntax error (could not find flow mapping end token '}'), expected YAML`},
	} {
		check(t, minimal+tc[0]+"\n", tc[1])
	}
}

// TestAnnouncedValues: a file written for a later version is told apart from
// a mistake, and says what to use here.
func TestAnnouncedValues(t *testing.T) {
	_, err := Parse("gw.yaml", []byte(minimal+"drain:\n  overflow: apply\n  follow: true\nreload: {mode: auto}\n"))
	faults, _ := errors.AsType[Errors](err)
	if len(faults) != 3 {
		t.Fatal(err)
	}
	for i, want := range []Fault{
		{File: "gw.yaml", Line: 9, Column: 13, Key: "drain.overflow", Found: `"apply"`, Expected: "wait or evict", Later: true},
		{File: "gw.yaml", Line: 10, Column: 11, Key: "drain.follow", Found: "true", Expected: "false", Later: true},
		{File: "gw.yaml", Line: 11, Column: 16, Key: "reload.mode", Found: `"auto"`, Expected: "generation", Later: true},
	} {
		if faults[i] != want {
			t.Errorf("have %+v, want %+v", faults[i], want)
		}
	}
}

func TestFaultsOfTheWholeFile(t *testing.T) {
	missing := []string{
		`1:1: listeners: found no key "listeners", expected a list of listeners`,
		`1:1: routes: found no key "routes", expected a list of routes`,
	}
	for _, text := range []string{"", "\n\n", "# nothing\n", "---\n", "---\n...\n", "{}\n"} {
		check(t, text, missing...)
	}
	check(t, "[]\n", `1:1: found a list, expected a mapping with the keys listeners, workers, worker, user, group, steering, routes, drain, reload, upgrade, start, liveness, table, queue, sockets, cid, limits, access_log, log, pid_file and strict`)
	check(t, "\t- x\n", `1:1: found a syntax error (tab character cannot use as a sequence delimiter), expected YAML`)
	check(t, strings.Repeat("[", 100), `1:65: found values nested too deeply, expected at most 64 levels`)
	check(t, strings.Repeat("- ", 100), `1:129: found values nested too deeply, expected at most 64 levels`)
	check(t, "a: b\nc: \xff\n", `2:4: found bytes that are no UTF-8, expected YAML in UTF-8`)
	check(t, strings.Repeat("#", maxFile+1), `found 1048577 bytes, expected at most 1048576`)
}

func TestLoadNamesTheFile(t *testing.T) {
	dir := t.TempDir()
	for path, want := range map[string]string{
		filepath.Join(dir, "none.yaml"): "found no such file, expected a readable configuration file",
		dir:                             "found is a directory, expected a readable configuration file",
	} {
		_, err := Load(path)
		if err == nil || err.Error() != path+": "+want {
			t.Errorf("have %v, want %s: %s", err, path, want)
		}
	}
}

// TestAllFaultsAtOnce makes a hundred faults in one file.
func TestAllFaultsAtOnce(t *testing.T) {
	var text strings.Builder
	text.WriteString("listeners:\n")
	for i := range 50 {
		fmt.Fprintf(&text, "- {name: l%d, address: \"127.0.0.1:%d\", tls: {self_signed: maybe}, quick: {}}\n", i, 1000+i)
	}
	text.WriteString("routes: [{path: /, whoami: }]\n")
	_, err := Parse("gw.yaml", []byte(text.String()))
	faults, ok := errors.AsType[Errors](err)
	if !ok || len(faults) != 100 {
		t.Fatalf("%d faults:\n%v", len(faults), err)
	}
	for i, f := range faults {
		if f.Line != 2+i/2 || f.File != "gw.yaml" || f.Column < 2 || f.Key == "" || f.Found == "" || f.Expected == "" {
			t.Errorf("fault %d: %+v", i, f)
		}
	}
	if got := strings.Count(err.Error(), "\n"); got != 99 {
		t.Errorf("%d line breaks", got)
	}
}

// TestPlaces checks line and column where counting them is not plain.
func TestPlaces(t *testing.T) {
	const fault = `: strict: found 1, expected true or false`
	for text, at := range map[string]string{
		minimal + "log: {level: info} # ü\nstrict: 1\n":                      "9:9",
		strings.ReplaceAll(minimal, "\n", "\r\n") + "strict: 1\r\n":          "8:9",
		minimal + "pid_file: \"/ü\"\nstrict: 1\n":                            "9:9",
		minimal + "pid_file: |\n  /a\n\nstrict: 1\n":                         "11:9",
		minimal + "pid_file: >-\n  /a\n  b\nstrict: 1\n":                     "11:9",
		minimal + "pid_file: \"/a\n  b\"\nstrict: 1\n":                       "10:9",
		minimal + "strict:\n  1\n":                                           "9:3",
		minimal + "? strict\n: 1\n":                                          "9:3",
		minimal + "strict: &x 1\n":                                           "8:12",
		minimal + "strict   :   1\n":                                         "8:14",
		"strict: 1\n" + minimal:                                              "1:9",
		"\ufeff" + minimal + "strict: 1\n":                                   "8:9",
		"--- # x\n" + minimal + "strict: 1\n...\n":                           "9:9",
		strings.ReplaceAll(minimal, "\n", "  # comment\n\n") + "strict: 1\n": "15:9",
	} {
		check(t, text, at+fault)
	}
}

func TestRelativePaths(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "site"), 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "gw.yaml")
	text := minimal + "- {path: /f/, files: {root: ./site}}\nlog: {path: h.log}\naccess_log: {path: \"off\"}\npid_file: /p\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Dir(dir))
	c, err := Load(filepath.Join(filepath.Base(dir), "gw.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if c.Path() != path || c.Log.Path != filepath.Join(dir, "h.log") || c.AccessLog.Path != LogOff || c.PIDFile != "/p" || c.Routes[1].Files.Root != filepath.Join(dir, "site") {
		t.Errorf("%s: %+v %+v %s %+v", c.Path(), c.Log, c.AccessLog, c.PIDFile, c.Routes[1].Files)
	}
}

func TestAliases(t *testing.T) {
	c := mustParse(t, `listeners:
- {name: a, address: ":1", tls: &tls {self_signed: true}, protocols: &p [h3]}
- {name: b, address: ":2", tls: *tls, protocols: *p}
routes: [{path: /, respond: &r {body: x}}, {path: /a, respond: *r}]
`)
	if !c.Listeners[1].TLS.SelfSigned || c.Listeners[1].TCP() || c.Routes[1].Respond.Body != "x" {
		t.Errorf("%+v", c)
	}
	var bomb strings.Builder
	bomb.WriteString("listeners: []\nroutes:\n- {path: /, proxy: {upstreams: &u [" + strings.Repeat("x, ", 2000) + "]}}\n")
	for range 200 {
		bomb.WriteString("- {path: /, proxy: {upstreams: *u}}\n")
	}
	if have := faultsOf(t, "gw.yaml", bomb.String()); len(have) != 1 || !strings.HasSuffix(have[0], "found too much content behind aliases, expected fewer than 100000 values in all") {
		t.Errorf("%.200q", have)
	}
}
