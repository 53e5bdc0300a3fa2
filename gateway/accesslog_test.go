package gateway

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// readLog returns the lines of an access log once there are n.
func readLog(t *testing.T, path string, n int) []map[string]any {
	t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for {
		var lines []map[string]any
		if f, err := os.Open(path); err == nil {
			for s := bufio.NewScanner(f); s.Scan(); {
				line := map[string]any{}
				if err := json.Unmarshal(s.Bytes(), &line); err != nil {
					t.Fatalf("line %q: %v", s.Text(), err)
				}
				lines = append(lines, line)
			}
			f.Close()
		}
		if len(lines) >= n {
			return lines
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s has %d lines, expected %d", path, len(lines), n)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestAccessLogHasOneLinePerRequest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.log")
	o := testOptions(t, Route{Path: "/", Respond: &Respond{Status: 418, Body: "tea"}})
	o.AccessLog.Path = path
	h := start(t, "127.0.0.1:0", o)
	all := clients(t, h)
	for _, c := range all {
		c.get(t, "/x?y=1")
		c.get(t, ProbePath) // is not logged
	}
	seen := map[any]bool{}
	for _, line := range readLog(t, path, len(all)) {
		seen[line["protocol"]] = true
		if line["status"] != 418.0 || line["bytes"] != 3.0 || line["uri"] != "/x?y=1" || line["method"] != http.MethodGet || line["listener"] != "public" {
			t.Errorf("line is %v", line)
		}
	}
	if len(seen) != len(all) {
		t.Errorf("protocols are %v", seen)
	}
}

func TestAccessLogIsOpenedAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.log")
	o := testOptions(t, Route{Path: "/", Respond: &Respond{}})
	o.AccessLog.Path = path
	h := start(t, "127.0.0.1:0", o)
	c := http3Client(t, h)
	c.get(t, "/before")
	readLog(t, path, 1)
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	h.reopen <- struct{}{}
	h.orders <- holdOn // is taken after the log has been opened
	c.get(t, "/after")
	if lines := readLog(t, path, 1); lines[0]["uri"] != "/after" {
		t.Errorf("the new file has %v", lines)
	}
	if lines := readLog(t, path+".1", 1); len(lines) != 1 {
		t.Errorf("the old file has %d lines", len(lines))
	}
}
