package config

import (
	"strings"
	"testing"
)

func TestNeedsRestart(t *testing.T) {
	old := mustParse(t, minimal)
	for _, tc := range []struct{ text, keys, err string }{
		{minimal, "", ""},
		{minimal + "# a comment\n", "", ""},
		{minimal + "workers: 3\ndrain: {mode: goaway}\nlog: {level: debug}\n", "", ""},
		{minimal + "access_log: {path: /a}\nlog: {path: stderr}\n", "", ""},
		{
			minimal + "log: {path: /a, format: console}\n", "log.path log.format",
			`gw.yaml:8:13: log.path: found "/a", expected "stderr" as before, because a change takes a restart
gw.yaml:8:25: log.format: found "console", expected "json" as before, because a change takes a restart`,
		},
		{minimal + "table: {entries: 1048576}\n", "", ""},
		{
			minimal + "table: {entries: 2Mi}\n", "table.entries",
			"gw.yaml:8:18: table.entries: found 2Mi, expected 1Mi as before, because a change takes a restart",
		},
		{
			minimal + "cid: {server_id: 0a}\nsockets: {receive_buffer: 1MiB, send_buffer: 1MiB}\nqueue: {lanes: 8, lane_size: 128KiB}\n",
			"queue.lanes queue.lane_size sockets.receive_buffer sockets.send_buffer cid.server_id",
			`gw.yaml:8:18: cid.server_id: found "0a", expected none as before, because a change takes a restart
gw.yaml:9:27: sockets.receive_buffer: found 1MiB, expected 7MiB as before, because a change takes a restart
gw.yaml:9:46: sockets.send_buffer: found 1MiB, expected 7MiB as before, because a change takes a restart
gw.yaml:10:16: queue.lanes: found 8, expected 32 as before, because a change takes a restart
gw.yaml:10:30: queue.lane_size: found 128KiB, expected 1MiB as before, because a change takes a restart`,
		},
	} {
		next := mustParse(t, tc.text)
		if got := strings.Join(NeedsRestart(old, next), " "); got != tc.keys {
			t.Errorf("have %q, want %q", got, tc.keys)
		}
		err := CheckReload(old, next)
		if (err == nil) != (tc.err == "") || err != nil && err.Error() != tc.err {
			t.Errorf("have\n%v\nwant\n%s", err, tc.err)
		}
		if err := CheckReload(next, next); err != nil {
			t.Error(err)
		}
	}
	// The key is gone, so the fault is where the file begins.
	with := mustParse(t, minimal+"queue: {lanes: 8}\n")
	if err := CheckReload(with, old); err == nil || err.Error() != "gw.yaml:1:1: queue.lanes: found 32, expected 8 as before, because a change takes a restart" {
		t.Error(err)
	}
}
