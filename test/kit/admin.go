package kit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Result is what a command printed and how it ended.
type Result struct {
	Code   int
	Stdout string
	Stderr string
}

// CLI runs a command of the product against the instance.
func (i *Instance) CLI(args ...string) Result {
	i.t.Helper()
	cmd := i.command(args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	code := 0
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		code = e.ExitCode()
	} else if err != nil {
		i.t.Fatalf("holdfast %s: %v", strings.Join(args, " "), err)
	}
	return Result{Code: code, Stdout: out.String(), Stderr: errs.String()}
}

// Reload runs `holdfast reload` and fails the test when it fails.
func (i *Instance) Reload() {
	i.t.Helper()
	if r := i.CLI("reload"); r.Code != 0 {
		i.t.Errorf("holdfast reload: exit code %d: %s", r.Code, r.Stderr)
	}
}

// ReloadAPI asks for a reload over the admin socket and returns when it is
// done or has failed. It costs no process.
func (i *Instance) ReloadAPI() error {
	_, err := i.Admin(http.MethodPost, "/v1/reload", 30*time.Second)
	return err
}

// Admin sends a request to the admin socket. A status other than 2xx is an
// error that carries the body.
func (i *Instance) Admin(method, path string, timeout time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(i.RuntimeDir, "admin.sock"))
		},
	}}
	req, err := http.NewRequestWithContext(ctx, method, "http://holdfast"+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	r, err := readResponse(resp)
	if err == nil && r.Status/100 != 2 {
		err = fmt.Errorf("status %d: %s", r.Status, bytes.TrimSpace(r.Body))
	}
	return r.Body, err
}

// TryStatus reads the status over the admin socket.
func (i *Instance) TryStatus() (Status, error) {
	data, err := i.Admin(http.MethodGet, "/v1/status", 5*time.Second)
	if err != nil {
		return Status{}, err
	}
	var s Status
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber() // counters are 64 bits wide
	return s, d.Decode(&s)
}

// Status reads the status and fails the test when it cannot be had.
func (i *Instance) Status() Status {
	i.t.Helper()
	s, err := i.TryStatus()
	if err != nil {
		i.t.Fatalf("status: %v\n%s", err, i.LogTail(20))
	}
	return s
}

// Conns lists the connections of all workers.
func (i *Instance) Conns() []ConnInfo {
	i.t.Helper()
	r := i.CLI("conns", "--json")
	if r.Code != 0 {
		i.t.Fatalf("holdfast conns: exit code %d: %s", r.Code, r.Stderr)
	}
	var cs []ConnInfo
	if err := json.Unmarshal([]byte(r.Stdout), &cs); err != nil {
		i.t.Fatalf("holdfast conns --json: %v: %s", err, r.Stdout)
	}
	return cs
}
