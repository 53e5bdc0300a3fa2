package test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/config"
	"github.com/holdfast-quic/holdfast/internal/admin"
	"github.com/holdfast-quic/holdfast/test/kit"
)

var errNotCurrent = errors.New("no generation is current")

// Without a configuration everything that is served works, on a host where
// there is nothing else: no directory and no other server.
func TestTheBuiltInExampleWorksByItself(t *testing.T) {
	ns := kit.NewNamespace(t, "own") // its port is fixed
	in := kit.Prepare(t, kit.Options{Namespace: ns})
	cmd := in.Command(nil, "run", "--name", in.Name, "--state-dir", in.StateDir)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	startProgram(t, cmd)
	client := admin.New(in.RuntimeDir + "/admin.sock")
	defer client.Close()
	awaitCurrent(t, client)

	for _, route := range config.Builtin().Routes {
		path, words := route.Path, map[string]string{"/": "/whoami", "/files/": "<h1>", "/api/": "hello", "/whoami": `"generation":1`}
		if route.Speedtest != nil {
			path += "?bytes=1000"
		}
		status, body := getWithin(t, ns, "127.0.0.1:8443", path)
		if status != http.StatusOK || !strings.Contains(strings.ReplaceAll(body, " ", ""), words[route.Path]) {
			t.Errorf("GET %s: status %d, %q", path, status, body)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, out.String())
	}
}

// startProgram starts a command that has ended when the test has.
func startProgram(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
}

// awaitCurrent returns when a supervisor that is no kit.Instance serves.
func awaitCurrent(t *testing.T, client *admin.Client) {
	t.Helper()
	kit.Eventually(t, kit.StartTimeout, "first generation current", func() error {
		s, err := client.Status(t.Context())
		if err == nil && s.Current() == nil {
			err = errNotCurrent
		}
		return err
	})
}

// getWithin makes a request of HTTP/1.1 from within a network namespace.
func getWithin(t *testing.T, ns *kit.Namespace, address, path string) (status int, body string) {
	t.Helper()
	var conn net.Conn
	if err := ns.Do(func() (err error) {
		conn, err = net.DialTimeout("tcp", address, 5*time.Second)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	secure := tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
	r, err := http.NewRequest(http.MethodGet, "https://"+address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Write(secure); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(secure), r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(data)
}
